"""A recording's course is played again in the real game: the same frames, and an error where they would be others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agents.record import RecordConfig, main as record
from benchmarks.courses import main
from core.episodes import RolloutStore

AGENT = Path("bundles/coinrun-robust-b/agent")


def test_the_actions_alone_bring_back_every_frame(tmp_path: Path) -> None:
    first, again, file = tmp_path / "first", tmp_path / "again", tmp_path / "course.npz"
    record(RecordConfig(agent=AGENT, out=first, episodes=5, slots=2, seed=3, start_level=500, num_levels=50, threads=1))
    main(["write", str(first), str(file)])
    main(["play", str(file), "--agent", str(AGENT), "--out", str(again)])
    with RolloutStore(first) as one, RolloutStore(again) as two:
        assert len(one) == len(two) == 6
        for a, b in zip(one, two, strict=True):
            for name, x in a.columns().items():
                np.testing.assert_array_equal(x, b.columns()[name], err_msg=name)
    with np.load(file) as kept:
        other = {k: kept[k] for k in kept.files}
    other["action"][:, :20] = 1  # to the left
    np.savez_compressed(file, **other)
    with pytest.raises(SystemExit, match="of 6 episodes went otherwise"):
        main(["play", str(file), "--agent", str(AGENT), "--out", str(tmp_path / "other")])
