"""A debug-sized agent, its rollouts, a simulator and its samples, made once for all processes of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import config as cli
from core.artefacts import verify
from tests.conftest import once


def run_stage(module: object, config_name: str, argv: list[str]) -> None:
    """Parse argv as the script would and run its main in this process."""
    cls = getattr(module, config_name)
    module.main(cli.parse(cls, argv, module.STAGE))  # type: ignore[attr-defined]


def make_pipeline(root: Path) -> None:
    """agent/, rollouts/, simulator/ and samples/, by the scripts' own mains."""
    from agents import record, train as train_agent
    from generative import record_samples, train as train_gen

    debug = ["--preset", "debug", "--threads", "1"]
    run_stage(train_agent, "TrainConfig", [*debug, "--out", f"{root}/agent"])
    run_stage(record, "RecordConfig", [*debug, "--agent", f"{root}/agent", "--out", f"{root}/rollouts"])
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
