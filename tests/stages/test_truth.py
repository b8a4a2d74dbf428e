"""Truth columns of Procgen recordings through the probes' and the events' stages, on the demo's agent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import record
from agents.recurrent import load_agent
from analysis.events import __main__ as events
from analysis.patching import __main__ as patching
from analysis.probes import __main__ as probes
from analysis.probes.baselines import previous_actions, seen_by
from analysis.probes.scores import BEYOND, LEARNT
from core import artefacts, config as cli
from core.artefacts import Result
from core.episodes import RolloutStore
from envs.procgen_truth import TRUTH_EVENTS

ROOT = Path(cli.__file__).resolve().parent.parent
AGENT = ROOT / "bundles" / "coinrun-context" / "agent"
FAST = ("--threads", 1, "--resamples", 99, "--shuffles", 19, "--no-mlp")


def run(module: Any, cls: str, *argv: object) -> Result:
    """The stage as its command line would run it; its result."""
    config = cli.parse(getattr(module, cls), [str(a) for a in argv], module.STAGE)
    module.main(config)
    assert artefacts.verify(config.out) == []
    return Result.load(config.out)


def fails(capsys: pytest.CaptureFixture[str], module: Any, cls: str, *argv: object) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.run(getattr(module, cls), module.main, module.STAGE, [str(a) for a in argv])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all/, sparse/ (every 4), clumsy/ (half of the actions at random, the same levels) and plain/ (no truth)."""
    root = tmp_path_factory.mktemp("truth")
    common = ["--agent", str(AGENT), "--episodes", "12", "--slots", "12", "--split", "held_out", "--threads", "1"]
    more = {
        "all": ["--truth", "all"], "sparse": ["--truth", "every", "4"], "plain": [],
        "clumsy": ["--truth", "all", "--explore_share", "1", "--random", "0.5"],
    }  # fmt: skip
    for name, words in more.items():
        record.main(cli.parse(record.RecordConfig, [*common, *words, "--out", str(root / name)], record.STAGE))
    return root


def column(path: Path, *names: str) -> list[np.ndarray]:
    with RolloutStore(path) as store:
        columns, _ = store.pooled(*(f"truth/{name}" for name in names))
    return [columns[f"truth/{name}"] for name in names]


def test_probes_of_a_recording_without_truth_say_how_to_record_it(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fails(capsys, probes, "ProbesConfig", world / "plain", "--out", tmp_path / "out")
    assert "no ground truth to read; record it again with python record.py --truth all" in said


def test_probes_of_a_recording_with_truth(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = ["agent_vy", "coin_bearing", "saw_distance", "support", "time"]
    result = run(probes, "ProbesConfig", world / "all", "--targets", *targets, "--agents", AGENT, "--out",
                 tmp_path / "probes", *FAST)  # fmt: skip
    said = capsys.readouterr().out
    rows = {row["target"]: row for row in result.tables["targets"]}
    assert list(rows) == ["agent_vy", "sin(coin_bearing)", "cos(coin_bearing)", "saw_distance", "support", "time"]
    saw, vy = column(world / "all", "saw_distance", "agent_vy")
    assert rows["saw_distance"]["rows"] == np.isfinite(saw).sum() < rows["agent_vy"]["rows"] == len(vy)
    assert result.notes["unit"] == "level" and result.notes["given"] == ["step"]
    for name in ("frame", "action", "all", "random", "time"):
        for row in rows.values():
            assert row[f"linear_minus_{name}"] == pytest.approx(row["linear"] - row[name])
            assert row[f"linear_minus_{name}_low"] <= row[f"linear_minus_{name}"] <= row[f"linear_minus_{name}_high"]
            assert row[f"linear_minus_{name}_q"] is not None
    support = rows["support"]
    assert support["kind"] == "binary" and support["auroc_linear"] > 0.7
    assert support["auroc_linear_minus_frame"] == pytest.approx(support["auroc_linear"] - support["auroc_frame"])
    assert rows["time"]["everything_minus_all"] < 0.01 and all(BEYOND in row["memory"] for row in rows.values())
    assert rows["time"]["memory"] == f"open whether {BEYOND}"  # so few levels can all be unlike others
    assert all(LEARNT in row["learnt"] for row in rows.values())
    assert all(f"over a randomised agent: {row['learnt']}" in said for row in rows.values())
    for row in result.tables["agents"]:  # the recorded agent itself, shown its own frames
        assert row["recorded_minus_this"] == pytest.approx(0, abs=1e-3)
        assert row["r2"] == pytest.approx(rows[row["target"]]["linear"], abs=1e-3)
    assert {p.name for p in (tmp_path / "probes").iterdir()} >= {"probes.png", "agents.png", "agents.csv"}
    for target in rows:
        assert sum(line.split()[:1] == [target] for line in said.splitlines()) == 1
    assert "given: step" in said and "the frame alone" in said


def test_patching_resamples_levels_where_they_are_told(world: Path, tmp_path: Path) -> None:
    """Episodes of one level were independent to it, and --unit level was said not to be known."""
    small = ("--states", 48, "--controls", 50, "--resamples", 99, "--pca_size", 2, "--threads", 1)
    result = run(patching, "PatchingConfig", world / "plain", "--policy", AGENT, "--out", tmp_path / "p", *small)
    assert result.notes["unit"] == "level" and not result.notes["shared"]


def test_where_and_sparse_truth(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--targets", "coin_dx", "--given", "--agent", AGENT, *FAST, "--folds", 3)
    result = run(probes, "ProbesConfig", world / "all", "--where", "coin_in_view == 0 and not support", *words,
                 "--out", tmp_path / "where")  # fmt: skip
    view, support = column(world / "all", "coin_in_view", "support")
    kept = int(((view == 0) & (support == 0)).sum())
    assert result.notes["rows"] == kept and result.notes["left_out"]["not where"] == len(view) - kept
    assert f"{len(view) - kept:,} at which not: coin_in_view == 0 and not support" in capsys.readouterr().out
    words = ("--where", "not coin_in_view", *words, "--out", tmp_path / "s")
    sparse = run(probes, "ProbesConfig", world / "sparse", *words)
    (view,) = column(world / "sparse", "coin_in_view")
    assert sparse.notes["rows"] == (view == 0).sum() and sparse.notes["left_out"] == {
        "nothing to read": int(np.isnan(view).sum()), "not where": int((view > 0).sum()),
    }  # fmt: skip
    assert (tmp_path / "s" / "probes.png").exists()


def test_an_agent_is_shown_what_was_recorded(world: Path) -> None:
    agent = load_agent(AGENT)
    with RolloutStore(world / "all") as store:
        columns, index = store.pooled("h", "action")
        some = index[:, 1] % 3 == 1
        seen = seen_by(agent, store, index[some])
        np.testing.assert_allclose(seen.h_NH, columns["h"][some], atol=1e-4)
        first = store.pooled("obs/frames", "h", episodes=[5])[0]
        alone = seen_by(agent, store, np.array([[5, 0], [5, 3]])).alone_NF
        embedding = agent.encode({"frames": torch.from_numpy(first["obs/frames"][[0, 3]])})
        np.testing.assert_allclose(alone[:, :256], embedding, atol=1e-4)
        np.testing.assert_allclose(alone[0, 256:], first["h"][0], atol=1e-4)  # no past yet
        assert np.abs(alone[1, 256:] - first["h"][3]).max() > 0.01
        before = previous_actions(store, index[some], 2)
        group = {i: k for k, ids in enumerate(store.spec.distinct_actions().values()) for i in ids}
        size = len(set(group.values()))
        action = {(int(e), int(t)): int(a) for (e, t), a in zip(index, columns["action"], strict=True)}
        want = np.zeros((some.sum(), 2, size))
        for n, (e, t) in enumerate(index[some]):
            for k in range(2):
                if t - 1 - k >= 0:
                    want[n, k, group[action[int(e), int(t) - 1 - k]]] = 1
        np.testing.assert_array_equal(before, want.reshape(len(want), -1))


def test_a_recording_without_its_agent(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was moved names no agent that is there; the probes run without what needs it, and say so."""
    shutil.copytree(world / "all", tmp_path / "moved" / "all")
    words = [tmp_path / "moved" / "all", "--targets", "agent_vy", *FAST, "--out", tmp_path / "p"]
    probes.main(cli.parse(probes.ProbesConfig, [str(word) for word in words], probes.STAGE))
    result = Result.load(tmp_path / "p")
    assert "frame" not in result.tables["targets"][0] and result.notes["baselines"] == []
    assert "no agent at hand" in capsys.readouterr().out


def test_mistakes_with_truth(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", tmp_path / "out")
    for argv, said in (
        (("--where", "coin_inview == 0"), "--where: no column 'coin_inview' (did you mean coin_in_view?)"),
        (("--where", "agent_x > 999"), "no step at which a quantity has a value, and of which it is true that agent_x"),
        (("--targets", "coin_bering"), "no quantity 'coin_bering'"),
        (("--previous", 0), "--previous must be at least 1"),
        (("--checkpoints",), "--checkpoints belongs to --agents"),
    ):
        assert said in fails(capsys, probes, "ProbesConfig", world / "all", *out, *argv)
    for argv, said in (
        (("all", "--events", "deaths"), "--events 'deaths': no such event; known here: death, reward"),
        (("all", "--events", "a: truth(saw) < 1"), "no truth column 'saw'"),
        (("all", "--events", "death", "death"), "names 'death' twice"),
        (("sparse", "--events", "dies_by_saw"), "--events dies_by_saw needs what record.py --truth all records"),
        (("sparse", "--events", "a: truth(agent_y) < 2"), "the truth was read at every 4 steps only"),
        (("plain", "--events", "dies_by_saw"), "--events dies_by_saw needs what record.py --truth all records"),
    ):
        assert said in fails(capsys, events, "EventsConfig", world / argv[0], *argv[1:], *out)
    assert not (tmp_path / "out").exists()


def test_events_of_a_recording(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(events, "EventsConfig", world / "all", "--out", tmp_path / "events")
    said = capsys.readouterr().out
    rows = {row["event"]: row for row in result.tables["events"]}
    assert list(rows) == ["death", "reward", "jump_started", *TRUTH_EVENTS["coinrun"]]
    crate, index = column(world / "all", "on_crate")[0], RolloutStore(world / "all").pooled("value")[1]
    starts = (crate[1:] == 1) & (crate[:-1] == 0) & (index[1:, 0] == index[:-1, 0])
    assert rows["jumps_on_crate"]["times"] == starts.sum()
    assert rows["jumps_on_crate"]["rate"] == pytest.approx(starts.sum() / 12)
    store = RolloutStore(world / "all")
    lost = sum(float(store.episode(e).reward.sum()) <= 0 for e in range(len(store)))
    assert rows["death"]["times"] == lost and rows["reward"]["times"] == 12 - lost
    assert 0 < rows["jump_started"]["rate_low"] < rows["jump_started"]["rate"] < rows["jump_started"]["rate_high"]
    never = rows["time_is_up"]
    assert never["times"] == 0 and never["rate_low"] == 0 and never["rate_high"] == pytest.approx(0.265, abs=0.01)
    assert all(f"{name}: " in said for name in rows) and (tmp_path / "events" / "events.png").exists()
    plain = run(events, "EventsConfig", world / "plain", "--out", tmp_path / "plain")
    assert [row["event"] for row in plain.tables["events"]] == ["death", "reward", "jump_started"]


def test_events_of_two_recordings(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rises = "rises: previous(truth(agent_y)) < truth(agent_y)"
    words = ("--events", "death", "jump_started", "left: action == left", rises)
    result = run(events, "EventsConfig", world / "all", world / "clumsy", *words, "--out", tmp_path / "two")
    said = capsys.readouterr().out
    rows = {row["event"]: row for row in result.tables["events"]}
    for row in rows.values():
        assert row["difference"] == pytest.approx(row["altered_rate"] - row["rate"]) and row["q"] >= row["p"]
        assert row["difference_low"] <= row["difference"] <= row["difference_high"]
    assert rows["jump_started"]["paired"] == len(np.unique(result.arrays["unit"])) == 12  # the same levels
    assert rows["left"]["verdict"] == "more often" and "more often" in said
    same = run(events, "EventsConfig", world / "all", world / "all", *words, "--out", tmp_path / "same")
    for row in same.tables["events"]:
        assert row["difference"] == 0 and row["difference_low"] == -row["difference_high"] <= 0
        assert row["verdict"] == "no difference found" and row["p"] == 1
    died = next(row for row in same.tables["events"] if row["event"] == "death")  # once in an episode, or not
    assert died["difference_high"] == pytest.approx(0.242, abs=1e-3)  # Tango's of no pair of 12 that differs
