"""validation.saliency_trial as a user runs it: the real game at debug size, and the mistakes there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.artefacts import Result, verify
from core.contracts import UserError
from core.figures import figure_of
from tests.conftest import write_agent
from tests.stages.conftest import run_stage
from validation.saliency_trial import __main__ as stage
from validation.saliency_trial.figures import draw_examples, draw_scores

SMALL = [
    "--starts", "8", "--objects", "2", "--horizon", "2", "--draws", "2", "--boxes", "2", "--shuffles", "1",
    "--integrated_steps", "2", "--world_integrated_steps", "1", "--latest_start", "16", "--threads", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trial") / "out"
    given = ["--agent", f"{pipeline}/agent", "--simulator", f"{pipeline}/simulator", "--out", f"{out}"]
    run_stage(stage, "SaliencyTrialConfig", [*given, *SMALL])
    return out


def test_the_real_game_with_the_objects_removed(run: Path) -> None:
    result = Result.load(run)
    a, rows = result.arrays, result.tables["scores"]
    assert verify(run) == []
    assert result.notes["twin"] == 0
    assert len(a["frames"]) == 8 and np.bincount(a["of"]).min() >= 2
    gone = (a["edited_frames"] != a["frames"][a["of"]]).any(-1)
    for o, (x0, y0, x1, y1) in enumerate(a["boxes"]):
        assert not gone[o].any() or gone[o, y0:y1, x0:x1].any()
    assert gone.any(axis=(1, 2)).mean() > 0.8
    assert {"value", "policy", "value@2", "return@2", "policy@1..2"} <= set(result.notes["quantities"])
    worlds = {(r["method"], r["world"] or "") for r in rows if r["kind"] == "method" and r["quantity"] == "value@2"}
    alone = {"gradient", "gradient x input", "integrated gradients", "DeepLift"}
    alone |= {"occlusion by the mean around", "occlusion by what is behind"}
    assert worlds == {(m, w) for m in alone for w in ("", "start held", "start inferred") if m != "DeepLift" or not w}
    assert not any(r["world"] for r in rows if r["quantity"] == "value")  # at once no world has a say
    # What the agent sees at once in the edited game, with the rest of the picture as it was, is what occlusion by what
    # is behind shows it, wherever only the object's own pixels change.
    own = np.array([gone[o].sum() == gone[o, y0:y1, x0:x1].sum() for o, (x0, y0, x1, y1) in enumerate(a["boxes"])])
    said, true = a["said value by occlusion by what is behind"], np.abs(a["true value"])
    assert own.any() and np.allclose(said[own], true[own], atol=1e-5)


def test_figures_and_the_same_again(run: Path, pipeline: Path, tmp_path: Path) -> None:
    result = Result.load(run)
    for figure in (draw_scores(result), draw_examples(result)):
        assert isinstance(figure, type(figure_of(1, 1)))
    assert {"scores.png", "examples.png"} <= {p.name for p in run.iterdir()}
    given = ["--agent", f"{pipeline}/agent", "--simulator", f"{pipeline}/simulator", "--out", f"{tmp_path}/again"]
    run_stage(stage, "SaliencyTrialConfig", [*given, *SMALL])
    again = Result.load(tmp_path / "again")
    assert all(np.array_equal(v, again.arrays[k]) for k, v in result.arrays.items())
    for table in ("scores.csv", "objects.csv"):
        assert (tmp_path / "again" / table).read_bytes() == (run / table).read_bytes()


def test_mistakes_are_one_line_and_leave_nothing(pipeline: Path, tmp_path: Path) -> None:
    out = ["--out", f"{tmp_path}/out", *SMALL]
    planted = write_agent(tmp_path / "planted", world="gymnasium/pixels")
    with pytest.raises(
        UserError, match="^objects are removed from Procgen's games alone; this agent's world is gymnas"
    ):
        run_stage(stage, "SaliencyTrialConfig", ["--agent", f"{planted}", *out])
    generated = write_agent(tmp_path / "generated", world="procgen/coinrun", options={"use_generated_assets": True})
    with pytest.raises(UserError, match="^a world of generated assets"):
        run_stage(stage, "SaliencyTrialConfig", ["--agent", f"{generated}", *out])
    other = write_agent(tmp_path / "other", world="procgen/coinrun")
    with pytest.raises(UserError, match="was trained around another agent than"):
        run_stage(stage, "SaliencyTrialConfig", ["--agent", f"{other}", "--simulator", f"{pipeline}/simulator", *out])
    many = ["--agent", f"{pipeline}/agent", "--objects", "90", "--out", f"{tmp_path}/out", "--starts", "64",
            "--latest_start", "2"]  # fmt: skip
    with pytest.raises(UserError, match="^only 0 of .* have 90 objects in the picture"):
        run_stage(stage, "SaliencyTrialConfig", many)
    assert not (tmp_path / "out").exists()
