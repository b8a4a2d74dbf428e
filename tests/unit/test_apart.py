"""How far apart the members of an ensemble are."""

from __future__ import annotations

import numpy as np
import pytest

from core.contracts import EnvSpec, Field
from core.episodes import Episode
from generative.apart import Apart

SPEC = EnvSpec(
    env_id="own/world",
    obs={"x": Field(shape=(1,), dtype="float32")},
    action_names=("left", "right"),
    slots=1,
    options={},
)


def course(steps: int, ended: bool) -> Episode:
    rows = steps if ended else steps + 1
    of = {name: np.zeros((rows, 1), np.float32) for name in ("x", "h", "value")}
    return Episode(
        obs={"x": of["x"]}, h=of["h"], value=of["value"][:, 0], action=np.zeros(steps, np.int64),
        logits=np.zeros((steps, 2), np.float32), reward=np.zeros(steps, np.float32), terminated=ended,
        truncated=not ended,
    )  # fmt: skip


def test_a_member_that_ends_alone_is_seen() -> None:
    """Two of three members go on at step 2, one at step 3, none at step 4; another sample ends in no member."""
    apart = Apart(4, SPEC, None)
    apart.keep(apart.of([course(2, True), course(3, True), course(4, True)]))
    apart.keep(apart.of([course(4, False)] * 3))
    rows = {(r["measure"], r["step"]): r for r in apart.table(np.random.default_rng(0))}
    assert [rows["same_ending", t]["value"] for t in range(5)] == pytest.approx([1, 1, 2 / 3, 2 / 3, 1])
    assert [rows["same_ending", t]["n"] for t in range(5)] == [2, 2, 2, 2, 1]  # at step 4 one sample is over in all
    assert [rows["value_spread", t]["n"] for t in range(5)] == [2, 2, 1, 1, 1]
