"""Patching on a policy whose wiring is known: a direction moves the head that reads it, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.policies import kl_per_part
from analysis.patching.config import PatchingConfig
from analysis.patching.directions import Directions, joined, pca_directions
from analysis.patching.figures import draw
from analysis.patching.patch import Steps, check_alignment, patch, recorded_directions
from analysis.patching.table import ALL, table_of
from core import config as cli
from core.artefacts import Result
from core.contracts import EnvSpec, Field, UserError
from validation.interventions.__main__ import InterventionsConfig

H, PARTS = 12, {"Move": 5, "Attack": 4, "Gift": 3}
SPEC = EnvSpec(
    env_id="planted", slots=1, action_parts=PARTS, action_names=tuple(f"a{i}" for i in range(12)),
    obs={"Mask": Field(shape=(12,), dtype="int8")},
)  # fmt: skip
MOVE, ATTACK, NUISANCE = 0, 1, 2  # neurons: the first two are read by one head each, the third by none


class Linear:
    """Move reads neuron 0, and a little 3, Attack 1, and a little 4; Gift never has a choice."""

    spec, points = SPEC, {"h": H}

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weights_HA = torch.zeros(H, 12)
        for columns, read in ((slice(0, 5), (MOVE, 3)), (slice(5, 9), (ATTACK, 4))):
            size = self.weights_HA[list(read), columns].shape
            self.weights_HA[list(read), columns] = torch.randn(size, generator=generator) * torch.tensor([[1.5], [0.3]])
        self.weights_HA[:, 9:] = torch.randn(H, 3, generator=generator)

    def initial(self, batch: int) -> Tensor:
        return torch.zeros(batch, H)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        return obs["Mask"] > 0

    def advance(self, seen: Tensor, state: Tensor, is_first_B: Tensor) -> Tensor:
        return state

    def heads(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return (state @ self.weights_HA).masked_fill(~seen, -1e9), state[:, 0]

    def read(self, point: str, seen: Tensor, state: Tensor) -> Tensor:
        return {"h": state}[point]

    def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return {"h": (seen, x_BN)}[point]


def planted(n: int = 200, seed: int = 0) -> Steps:
    rng = np.random.default_rng(seed)
    h, donor = (rng.standard_normal((n, H)).astype(np.float32) * np.linspace(1, 3, H, dtype=np.float32) for _ in "ab")
    mask = np.ones((n, 12), np.int8)
    mask[:, 9:11] = 0  # Gift: the no-op only
    mask[:, 4] = rng.random(n) < 0.5
    action = np.stack([rng.integers(0, 4, n), rng.integers(0, 4, n), np.full(n, 2)], 1)
    index = np.stack([np.arange(n) // 10, np.arange(n) % 10], 1)
    return Steps(h, donor, {"Mask": mask}, action, h[:, 0].copy(), np.arange(n) // 10, index, index)


def neurons(*ids: int) -> Directions:
    eye = np.eye(H)[list(ids)]
    return Directions([f"neuron_{i}" for i in ids], eye, eye)


def found(
    directions: Directions, steps: Steps | None = None, agent: Linear | None = None, **given: Any
) -> tuple[Any, list[dict], list[dict]]:
    steps = planted() if steps is None else steps
    options = {"doses": [0.25, 0.5, 1.0], "controls": 60, "batch": 64, "seed": 0} | given
    patched = patch(agent or Linear(), steps, directions, steps.h_NH.std(0).astype(np.float64), **options)
    rows, doses = table_of(
        patched, directions.names, list(PARTS), options["doses"], steps.unit_N, resamples=200,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    return patched, rows, doses


def test_a_direction_moves_the_head_that_reads_it_and_no_other() -> None:
    patched, rows, _ = found(neurons(MOVE, ATTACK, NUISANCE))
    said = {(row["direction"], row["head"]): row for row in rows}
    for neuron, head, other in ((MOVE, "Move", "Attack"), (ATTACK, "Attack", "Move")):
        moved, still = said[f"neuron_{neuron}", head], said[f"neuron_{neuron}", other]
        assert moved["verdict"] == "moves it more than random directions do" and moved["q"] <= 0.05
        assert 0 < moved["low"] < moved["kl"] < moved["high"] and moved["n"] == 20
        assert moved["share"] == pytest.approx(moved["kl"] / moved["swap"])
        assert still["kl"] == 0 and still["verdict"] == "moves nothing" and still["p"] == 1
    for head in ("Move", "Attack", ALL):
        assert said[f"neuron_{NUISANCE}", head]["kl"] == 0
    assert said["neuron_0", ALL]["kl"] == pytest.approx(said["neuron_0", "Move"]["kl"])
    assert said["neuron_0", "Gift"] == {
        "direction": "neuron_0", "head": "Gift", "steps": 0, "verdict": "never had a choice",
    }  # fmt: skip
    assert patched.identity == 0.0


def test_a_head_that_had_choices_in_few_units_is_not_tested() -> None:
    steps = planted()
    steps.obs["Mask"][:, 9:11] = (steps.unit_N < 5)[:, None]
    _, rows, doses = found(neurons(MOVE), steps)
    gift = next(row for row in rows if row["head"] == "Gift")
    assert gift["n"] == 5 and gift["steps"] == 50 and gift["q"] is None and gift["low"] < gift["kl"] < gift["high"]
    assert gift["verdict"] == "too few choices to tell"
    steps.obs["Mask"][10:, 9:11] = 0
    gift = next(row for row in found(neurons(MOVE), steps)[1] if row["head"] == "Gift")
    assert gift["n"] == 1 and gift["low"] is None  # one unit says nothing of the spread


def test_choices_in_one_unit_are_drawn_without_intervals() -> None:
    steps = planted()
    steps.obs["Mask"][steps.unit_N > 0] = np.eye(12, dtype=np.int8)[[0, 5, 9]].sum(0)
    _, rows, doses = found(neurons(MOVE), steps)
    assert rows[-1]["low"] is None
    notes = {"directions": [f"neuron_{MOVE}"], "heads": [*PARTS, ALL], "controls": 60, "unit": "life", "units": 1}
    result = Result(tables={"patching": rows, "doses": doses}, notes=notes | {"states": len(steps.h_NH)})
    assert len(draw(result)) == 3


def test_kl_is_that_of_the_heads_with_one_neuron_replaced() -> None:
    steps = planted()
    patched, _, _ = found(neurons(MOVE), steps)
    agent, moved = Linear(), steps.h_NH.copy()
    moved[:, MOVE] = steps.donor_NH[:, MOVE]
    seen = torch.from_numpy(steps.obs["Mask"]) > 0
    before, after, swapped = (agent.heads(seen, torch.from_numpy(h))[0] for h in (steps.h_NH, moved, steps.donor_NH))
    np.testing.assert_allclose(patched.dose_XDNP[2, 0], kl_per_part(before, after, SPEC).numpy(), atol=1e-5)
    np.testing.assert_allclose(patched.swap_NP, kl_per_part(before, swapped, SPEC).numpy(), atol=1e-5)


def test_what_a_state_holds_beside_h_is_kept() -> None:
    """Heads that read more than h decide with the recorded rest of the state."""

    class Gated(Linear):
        def initial(self, batch: int) -> Any:
            return torch.zeros(batch, H), torch.zeros(batch, 1)

        def heads(self, seen: Tensor, state: Any) -> tuple[Tensor, Tensor]:
            return super().heads(seen, state[0] * state[1])

        def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Any) -> Any:
            return seen, (x_BN, state[1])

    steps = planted()
    half = np.full((len(steps.h_NH), 1), 0.5, np.float32)
    steps = steps._replace(state_NS=np.concatenate([steps.h_NH, half], 1), value_N=steps.h_NH[:, 0] / 2)
    assert check_alignment(Gated(), steps, 64)["value_off"] < 1e-6
    halved = found(neurons(MOVE), steps, Gated())[1]
    as_far = Linear()
    as_far.weights_HA = as_far.weights_HA / 2
    assert [row.get("kl") for row in halved] == pytest.approx(
        [row.get("kl") for row in found(neurons(MOVE), planted(), as_far)[1]]
    )


def test_more_of_the_way_moves_more() -> None:
    _, _, doses = found(neurons(MOVE))
    curve = [row["kl"] for row in doses if row["head"] == "Move"]
    assert [row["dose"] for row in doses if row["head"] == "Move"] == [0.25, 0.5, 1.0]
    assert 0 < curve[0] < curve[1] < curve[2]


def test_random_directions_move_as_far_as_the_patch() -> None:
    """Measured from outside: a policy that records how far the z-scored state is moved."""
    steps = planted()
    std = steps.h_NH.std(0).astype(np.float64)
    lengths: list[np.ndarray] = []

    class Spy(Linear):
        def heads(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            lengths.append(np.linalg.norm((state.numpy() - steps.h_NH) / std, axis=1))
            return super().heads(seen, state)

    patch(Spy(), steps, neurons(MOVE), std, doses=[1.0], controls=50, batch=1000, seed=0)
    _, swap, identity, dose, towards, *random = lengths
    assert (identity == 0).all() and (swap > dose).all() and len(random) == 50
    for other in (towards, *random):
        np.testing.assert_allclose(other, dose, rtol=1e-4, atol=1e-5)


def spanned(seed: int, n: int = 120) -> tuple[Steps, Linear, np.ndarray, np.random.Generator]:
    """States that fill 8 of 64 dimensions [8, 64] evenly, as a layer's states fill few of theirs; Move reads all eight
    alike, Attack the first alone."""
    rng = np.random.default_rng(seed)
    span_DH = np.linalg.qr(rng.standard_normal((64, 8)))[0].T
    h, donor = (
        (rng.standard_normal((n, 8)) @ span_DH + 0.02 * rng.standard_normal((n, 64))).astype(np.float32) for _ in "ab"
    )
    agent = Linear()
    agent.weights_HA = torch.zeros(64, 12)
    agent.weights_HA[:, :5] = torch.from_numpy(span_DH.T @ rng.standard_normal((8, 5)))
    agent.weights_HA[:, 5:9] = torch.from_numpy(span_DH[:1].T @ rng.standard_normal((1, 4)))
    return planted(n)._replace(h_NH=h, donor_NH=donor, value_N=h[:, 0].copy()), agent, span_DH, rng


def along(names: list[str], change_DH: np.ndarray, std_H: np.ndarray) -> Directions:
    """Directions of length 1 in the z-scored state."""
    z_DH = change_DH / std_H / np.linalg.norm(change_DH / std_H, axis=1, keepdims=True)
    return Directions(names, z_DH / std_H, z_DH * std_H)


def test_that_a_direction_occurs_does_not_make_it_special() -> None:
    """Mixtures of what states vary along, none of which a head reads more than another, move no head more than random
    directions do (those uniform over all dimensions would find most of them); the one that a head reads alone does."""
    called = []
    for seed in range(2):
        steps, agent, span_DH, rng = spanned(seed)
        names = ["read alone", *(f"mixture_{i}" for i in range(8))]
        changes_DH = np.concatenate([span_DH[:1], rng.standard_normal((8, 8)) @ span_DH])
        directions = along(names, changes_DH, steps.h_NH.std(0).astype(np.float64))
        _, rows, _ = found(directions, steps, agent, doses=[1.0], controls=399, batch=120)
        more = [row["verdict"] == "moves it more than random directions do" for row in rows]
        said = {(row["direction"], row["head"]): is_more for row, is_more in zip(rows, more, strict=True)}
        assert said["read alone", "Attack"] and not said["read alone", "Move"]
        called += [is_more for (name, head), is_more in said.items() if name != "read alone" and head != ALL]
    assert len(called) == 2 * 8 * 3 and sum(called) <= 1


def test_random_directions_lead_from_one_unit_to_another() -> None:
    """States of a unit differ in neuron 0, units in neuron 1; neuron 2 never changes, and two units are alike."""
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(5), 8)
    h = np.stack([rng.standard_normal(40), np.array([0.0, 0, 1, 2, 3])[unit], np.full(40, 7.0)], 1)
    h[:16, 0] = 0.5
    std = h.std(0) * [1, 1, 0]
    drawn = recorded_directions(h, unit, std, 500, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1)
    assert (drawn[:, 1] != 0).all() and (drawn[:, 2] == 0).all() and 0.4 < (drawn[:, 1] > 0).mean() < 0.6
    np.testing.assert_array_equal(drawn, recorded_directions(h, unit, std, 500, np.random.default_rng(0)))
    for states, units in ((h, np.zeros(40)), (h[:16], unit[:16])):
        with pytest.raises(UserError, match="all of one unit, or alike; give more --states"):
            recorded_directions(states, units, std, 50, rng)


def test_arbitrary_directions_pass_for_random_ones() -> None:
    """Of directions drawn as the controls are, about one in twenty has p <= 0.05 (before correction)."""
    steps = planted(100)
    std = steps.h_NH.std(0).astype(np.float64)
    unit = recorded_directions(steps.h_NH, steps.unit_N, std, 60, np.random.default_rng(1))
    arbitrary = Directions([f"any_{i}" for i in range(60)], unit / std, unit * std)
    _, rows, _ = found(arbitrary, steps, doses=[1.0], controls=50, batch=100)
    p = np.array([row["p"] for row in rows if row["head"] == "Move"])
    assert (p <= 0.05).mean() <= 0.15 and 0.3 < p.mean() < 0.7


def test_pca_directions_replace_one_coordinate_and_keep_the_rest() -> None:
    h = planted(500).h_NH.copy()
    h[:, 5] = 1.0  # a dead unit
    directions = pca_directions(h, 4)
    np.testing.assert_allclose(directions.read_DH @ directions.move_DH.T, np.eye(4), atol=1e-5)
    assert (directions.move_DH[:, 5] == 0).all() and (directions.read_DH[:, 5] == 0).all()


def test_states_that_do_not_belong_to_their_observations_are_refused() -> None:
    steps = planted()
    assert check_alignment(Linear(), steps, 64)["value_off"] < 1e-6
    with pytest.raises(UserError, match="the policy's value of a recorded state is"):
        check_alignment(Linear(), steps._replace(h_NH=np.roll(steps.h_NH, 1, 0)), 64)
    action = steps.action_NP.copy()
    action[7, 2] = 0  # not allowed
    with pytest.raises(UserError, match="could not have taken a recorded action"):
        check_alignment(Linear(), steps._replace(action_NP=action), 64)
    with pytest.raises(UserError, match="value of a recorded state is nan off"):
        check_alignment(Linear(), steps._replace(value_N=np.full(200, np.nan, np.float32)), 64)


def test_directions_are_there_and_have_names_of_their_own() -> None:
    with pytest.raises(UserError, match="no direction to patch"):
        joined([])
    with pytest.raises(UserError, match="two directions are called 'neuron_1'"):
        joined([neurons(0, 1), neurons(1)])
    assert joined([neurons(0), neurons(1)]).names == ["neuron_0", "neuron_1"]


def test_directions_of_earlier_versions_are_numbers_in_their_config() -> None:
    earlier = {"policy": "runs/policy", "basis": "runs/basis", "direction_ids": [0, 2]}
    assert cli.from_json(PatchingConfig, earlier, "config").direction_ids == ("0", "2")
    assert cli.from_json(InterventionsConfig, {"directions": [1]}, "config").directions == ("1",)
