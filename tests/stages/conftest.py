"""A debug-sized agent, its rollouts, a simulator and its samples, made once for all processes of a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from core import config as cli
from core.artefacts import verify
from tests.conftest import once


def run_stage(module: object, config_name: str, argv: list[str]) -> None:
    """Parse argv as the script would and run its main in this process."""
    cls = getattr(module, config_name)
    module.main(cli.parse(cls, argv, module.STAGE))  # type: ignore[attr-defined]


SHORT = ("--slots", "8", "--num_steps", "150")  # an agent that was hardly trained plays whole episodes of up to 1000


def make_pipeline(root: Path, recorded: Sequence[str] = SHORT) -> None:
    """agent/, rollouts/, simulator/ and samples/, by the scripts' own mains.  recorded: how much; none: 8 episodes."""
    from agents import record, train as train_agent
    from generative import record_samples, train as train_gen

    debug = ["--preset", "debug", "--threads", "1"]
    run_stage(train_agent, "TrainConfig", [*debug, "--out", f"{root}/agent"])
    rollouts = ["--agent", f"{root}/agent", *recorded, "--out", f"{root}/rollouts"]
    run_stage(record, "RecordConfig", [*debug, *rollouts])
    models = ["--agent", f"{root}/agent", "--rollouts", f"{root}/rollouts"]
    run_stage(train_gen, "GenTrainConfig", [*debug, *models, "--out", f"{root}/simulator"])
    starts = ["--simulator", f"{root}/simulator", "--rollouts", f"{root}/rollouts"]
    run_stage(record_samples, "RecordSamplesConfig", [*debug, *starts, "--out", f"{root}/samples"])


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with agent/, rollouts/, simulator/ and samples/, one for all tests: none may have changed it."""
    root = once(tmp_path_factory, "pipeline", make_pipeline)
    yield root
    assert verify(root / "samples") == []
