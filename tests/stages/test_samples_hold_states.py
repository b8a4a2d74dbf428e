"""A recorded sample can be gone on from anywhere: coupling starts from its steps without simulating them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from analysis.coupling.jacobian import Recorded, replay
from core.episodes import RolloutStore
from core.trees import leaves
from generative.record_samples import RecordSamplesConfig, main
from generative.simulator import load_simulator

SIMULATOR = Path("bundles/coinrun-context/simulator")


def record(out: Path, **more: object) -> RolloutStore:
    main(RecordSamplesConfig(simulator=(SIMULATOR,), samples=3, steps=5, out=out, threads=1, **more))  # type: ignore[arg-type]
    return RolloutStore(out)


def test_the_places_of_a_store_are_those_of_a_replay(tmp_path: Path) -> None:
    simulator, cpu = load_simulator(SIMULATOR), torch.device("cpu")
    with record(tmp_path / "modal") as store:
        recorded = Recorded.of(store, simulator, cpu)
        assert recorded is not None and "world/d" in recorded.columns and len(recorded.columns) == 5
        played = replay(simulator, torch.from_numpy(store.latents()), 6)
        episode, step = np.array([0, 1, 2, 2]), np.array([0, 2, 4, 1])
        for ours, theirs in zip(
            leaves(tuple(recorded.places(episode, step))), leaves(tuple(played.places(episode, step))), strict=True
        ):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_noisy_samples_are_not_gone_on_from_as_if_they_were_modal(tmp_path: Path) -> None:
    with record(tmp_path / "noisy", stochastic=True) as store:
        assert Recorded.of(store, load_simulator(SIMULATOR), torch.device("cpu")) is None
