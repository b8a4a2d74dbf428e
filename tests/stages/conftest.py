"""A debug-sized agent, its rollouts, a simulator and its samples, made once for all processes of a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core import config as cli
from core.artefacts import verify
from tests.conftest import once

LAID_OUT: list[bool] = []  # whether figures make room for their labels here, all the same


@pytest.fixture(scope="module", autouse=True)
def no_room_for_labels(request: pytest.FixtureRequest) -> Iterator[None]:
    """To make room for labels takes a fifth to a third of a stage's time at debug size.  Everyday tests do it for the
    figures of one demo (``laid_out``) and else do without; where slow ones run too, it is always done."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    make_room = ConstrainedLayoutEngine.execute
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("markexpr") == "not slow":
            patch.setattr(ConstrainedLayoutEngine, "execute", lambda *a: make_room(*a) if LAID_OUT else None)
        yield


@contextmanager
def laid_out() -> Iterator[None]:
    """Figures with room for their labels."""
    LAID_OUT.append(True)
    try:
        yield
    finally:
        LAID_OUT.pop()


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
