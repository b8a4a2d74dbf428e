"""What counts as one independent unit: lives of one world together, and the simulated rollouts that start in them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from analysis.coupling.labels import labelled
from analysis.shared.samples import source_units
from analysis.shared.truths import levels_of
from analysis.target_functions import population
from core import artefacts
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore, StoreWriter
from envs.planted import PlantedAgent, PlantedOptions, record_planted

OPTIONS = PlantedOptions()
WORLDS = (0, 0, 1, 1, 2, 2)  # of six lives


def write(
    path: Path, source: str, metas: list[dict[str, Any]], levels: list[np.ndarray] | None = None, **inputs: Path
) -> RolloutStore:
    agent = PlantedAgent(OPTIONS)
    with artefacts.new_run(path, "record", {}, inputs) as run:
        artefacts.write_json(run.path / "spec.json", agent.spec.to_json())
        run.facts = {"agent": fingerprint(agent), "source": source}
        with StoreWriter(run.path) as writer:
            for e, episode in enumerate(record_planted(OPTIONS, len(metas), 6, 0)):
                truth = {} if levels is None else {"level": np.resize(levels[e], len(episode.h))}
                writer.add(replace(episode, meta=metas[e], truth=truth))
    return RolloutStore(path)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[RolloutStore, RolloutStore]:
    """Two lives of each of three worlds, and samples that start in four of them and in none."""
    real = write(tmp_path / "real", "real", [{"seed": 5, "world": w} for w in WORLDS])
    starts = [{"start": [e, 1]} for e in (0, 1, 4, 3)]
    return real, write(tmp_path / "samples", "simulated", [*starts, {"start": None}], rollouts=real.path)


def test_lives_of_one_world_are_one_unit(stores: tuple[RolloutStore, RolloutStore]) -> None:
    real, samples = stores
    assert source_units(real, range(6)).tolist() == [-1 - w for w in WORLDS]
    assert source_units(samples, range(5)).tolist() == [0, 0, 2, 1, -5]
    basis = Basis("neurons", *(torch.full((samples.pooled("h")[0]["h"].shape[1],), x) for x in (0.0, 1.0)),
                  *(torch.eye(samples.pooled("h")[0]["h"].shape[1]) for _ in "ab"), "")  # fmt: skip
    for store, units in ((real, 3), (samples, 4)):
        steps, _ = labelled(store, basis, None, "real")
        assert len(set(steps.unit_N.tolist())) == units


def test_samples_whose_recording_is_gone_are_of_the_life_that_they_start_in(
    stores: tuple[RolloutStore, RolloutStore], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, samples = stores
    shutil.rmtree(real.path)
    assert source_units(samples, range(5)).tolist() == [0, 1, 4, 3, -5] and not capsys.readouterr().err
    monkeypatch.setattr(samples, "spec", replace(samples.spec, env_id="nmmo", options={"players": 4}))
    source_units(samples, range(5))
    assert "taken for independent" in capsys.readouterr().err


def test_starts_of_target_functions_are_of_their_world(
    stores: tuple[RolloutStore, RolloutStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population, "informed_latents", lambda world, store, starts, *_: torch.randn(len(starts), 3))
    simulator: Any = SimpleNamespace(world=SimpleNamespace(initial_frames=2))
    starts = population.informed_starts(simulator, stores[0], 6, 8, 0, torch.device("cpu"))
    assert [WORLDS[e] for e in starts.where_S2[:, 0]] == starts.unit_S.tolist()
    assert len(set(starts.where_S2[:, 0].tolist())) == 6


def test_levels_are_told_apart_by_numbers_that_are_not_whole_and_by_those_that_come_late(tmp_path: Path) -> None:
    """Difficulties of .25 and .75 were one level, 0; a level that was not known at first, a traceback."""
    late, several = np.array([np.nan, 7.0]), np.array([1.0, 2.0])
    for name, levels, found in (
        ("shares", [np.array([x]) for x in (0.25, 0.75, 0.25)], [0, 1, 0]),
        ("late", [late, np.array([5.0]), late], [7, 5, 7]),
        ("several", [several, late, late], None),
        ("unknown", [np.array([np.nan])] * 3, None),
    ):
        told = levels_of(write(tmp_path / name, "real", [{}] * 3, levels))
        assert (None if told is None else told.tolist()) == found
