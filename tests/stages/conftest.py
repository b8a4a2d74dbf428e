"""A debug-sized agent, its rollouts, a simulator and its samples, made once by the scripts' own mains."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import config as cli


def run_stage(module: object, config_name: str, argv: list[str]) -> None:
    """Parse argv as the script would and run its main in this process."""
    cls = getattr(module, config_name)
    module.main(cli.parse(cls, argv, module.STAGE))  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with agent/, rollouts/, simulator/ and samples/."""
    from agents import record, train as train_agent
    from generative import record_samples, train as train_gen

    root = tmp_path_factory.mktemp("pipeline")
    debug = ["--preset", "debug", "--threads", "1"]
    run_stage(train_agent, "TrainConfig", [*debug, "--out", f"{root}/agent"])
    run_stage(record, "RecordConfig", [*debug, "--agent", f"{root}/agent", "--out", f"{root}/rollouts"])
    models = ["--agent", f"{root}/agent", "--rollouts", f"{root}/rollouts"]
    run_stage(train_gen, "GenTrainConfig", [*debug, *models, "--out", f"{root}/simulator"])
    starts = ["--simulator", f"{root}/simulator", "--rollouts", f"{root}/rollouts"]
    run_stage(record_samples, "RecordSamplesConfig", [*debug, *starts, "--out", f"{root}/samples"])
    return root
