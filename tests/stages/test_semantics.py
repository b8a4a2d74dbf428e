"""The clusters inside a policy, as a stage: what it makes of a recording, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
import shlex
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest
import torch

from agents import learning_curves as curves, record, train
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from agents.semantic import SemanticAgent, load_semantic, save_semantic
from analysis.semantics import __main__ as semantics
from analysis.semantics.quality import agree
from analysis.semantics.states import read_states, require_clusters
from analysis.shared import behaviours
from analysis.shared.units import stretches
from core import artefacts, config as cli
from core.artefacts import Result, new_run
from core.contracts import UserError
from core.directions import fingerprint, load_basis
from core.episodes import RolloutStore
from envs.procgen import ProcgenEnv, ProcgenOptions
from tests.conftest import once
from validation.interventions import __main__ as interventions
from validation.panel import __main__ as panel

GAME = ProcgenOptions(game="coinrun", use_backgrounds=False, restrict_themes=True)


def make_run(root: Path) -> None:
    """A short training; its agent with a codebook spread over its states; a recording of that one with the truth."""
    debug = ["--preset", "debug", "--threads", "1"]
    words = ["--policy", "semantic", "--out", f"{root}/trained"]
    train.main(cli.parse(train.TrainConfig, [*debug, *words], train.STAGE))
    agent = load_semantic(root / "trained")
    env = ProcgenEnv(GAME, 32, 1)
    frames = {k: torch.from_numpy(v) for k, v in env.reset(3).obs.items()}
    env.close()
    h = agent.advance(agent.encode(frames), agent.initial(32), torch.ones(32, dtype=torch.bool))
    with torch.no_grad():
        agent.codebook_C2.copy_(agent.plane(h)[:8])
        agent.codebook_C2[7] = 1e3  # a dead one
    save(root / "agent", agent)
    argv = [*debug, "--agent", f"{root}/agent", "--out", f"{root}/rollouts", "--truth", "all", "--num_steps", "150"]
    record.main(cli.parse(record.RecordConfig, argv, record.STAGE))


def save(path: Path, agent: SemanticAgent) -> Path:
    with new_run(path, "train", {"policy": "semantic"}) as run:
        save_semantic(agent, run.path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "semantics", make_run)


def config_of(made: Path, out: Path, *more: str) -> semantics.SemanticsConfig:
    places = ["--agent", f"{made}/agent", "--rollouts", f"{made}/rollouts", "--out", f"{out}", "--threads", "1"]
    small = ["--embedding_states", "150", "--hover_states", "200", "--surrogates", "2", "--video_frames", "40"]
    return cli.parse(semantics.SemanticsConfig, [*places, *small, *more], semantics.STAGE)


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything, compared with another seed's policy, with a name of the user's."""
    root = tmp_path_factory.mktemp("whole")
    (root / "names.json").write_text(json.dumps({"2": "walks <on>"}))
    more = ["--names", f"{root}/names.json", "--others", f"{made}/trained", "--plain", f"{made}/trained"]
    semantics.main(config_of(made, root / "out", *more, "--run_least", "1"))
    return root / "out"


def test_everything_is_made_and_the_names_are_in_it(made: Path, whole: Path) -> None:
    assert artefacts.verify(whole) == []
    have = set(artefacts.files_of(whole))
    assert {"embeddings.png", "effects.png", "hover.html", "names.json", "causes.json", "basis_plane.json"} <= have
    assert json.loads((whole / "names.json").read_text())["2"] == "walks <on>"
    text = (whole / "hover.html").read_text()
    assert "walks \\u003con>" in text and "walks <on>" not in text and "http" not in text.replace("http-equiv", "")
    films = {row["code"]: row for row in Result.load(whole).tables["videos"]}
    assert len(films) == 8 and films[7]["why_none"] == "dead: no state has it" and films[7]["frames"] == 0
    assert all((f"code_{c}.mp4" in have) == (row["frames"] > 0) for c, row in films.items())
    assert any(0 < row["frames"] <= 40 for row in films.values())


def test_the_numbers_are_those_of_their_definitions(made: Path, whole: Path) -> None:
    result, agent = Result.load(whole), load_semantic(made / "agent")
    store = RolloutStore(made / "rollouts")
    columns, index_N2 = store.pooled("h", "action")
    with torch.no_grad():
        code_N = agent.code(agent.plane(torch.from_numpy(columns["h"]))).numpy()
    counts = np.bincount(code_N, minlength=8)
    use = {row["code"]: row for row in result.tables["use"]}
    assert [use[c]["states"] for c in range(8)] == counts.tolist() and 7 in result.notes["dead"]
    share = counts[counts > 0] / len(code_N)
    assert result.scalars["perplexity"]["value"] == pytest.approx(np.exp(-(share * np.log(share)).sum()))
    assert result.scalars["codes_alive"]["value"] == (counts > 0).sum()
    _, run_R = stretches(code_N, index_N2[:, 0])
    assert run_R.sum() == len(code_N) and result.scalars["run_length"]["value"] == pytest.approx(run_R.mean())
    against = {row["with"]: row for row in result.tables["agreement"]}
    assert {"codes of trained", "k-means of the features", "step of the episode", "agent_x"} <= against.keys()
    assert all(-1 <= row["ari"] <= 1 and 0 <= row["nmi"] <= 1 for row in against.values())
    said = result.tables["effects"]
    right = next(row for row in said if (row["what"], row["code"]) == ("right", int(counts.argmax())))
    ids = [i for i, n in enumerate(store.spec.action_names) if n == "right"]
    assert right["inside"] == pytest.approx(np.isin(columns["action"], ids)[code_N == counts.argmax()].mean())
    assert {"action", "event", "truth", "agent"} <= {row["kind"] for row in said}
    spaces = {(row["labels"], row["space"]) for row in result.tables["silhouettes"]}
    plain = "k-means of the plain agent"
    assert {("codes", "features"), (plain, "features"), (plain, "its own")} <= spaces
    assert result.notes["runs_are"].startswith("not compared")


def test_the_plane_is_a_basis_whose_codes_are_the_agents(made: Path, whole: Path) -> None:
    agent = load_semantic(made / "agent")
    basis = load_basis(whole, "plane", fingerprint(agent))
    h = torch.from_numpy(RolloutStore(made / "rollouts").pooled("h")[0]["h"])
    c = basis.project(h)
    torch.testing.assert_close(basis.project(basis.lift(c)), c, rtol=1e-3, atol=1e-3)
    near = (c[:, None] - torch.tensor(basis.facts["codes"])).square().sum(-1).argmin(1)
    with torch.no_grad():
        assert (near == agent.code(agent.plane(h))).float().mean() > 0.99  # but for rounding at the borders
        torch.testing.assert_close(
            agent.plane(h + basis.lift_change(torch.tensor([1.0, 0.0]))) - agent.plane(h),
            torch.tensor([basis.facts["unit"], 0.0]).expand(len(h), -1), rtol=1e-3, atol=1e-3,
        )  # fmt: skip


def test_codes_are_tried_as_causes_in_the_real_game(made: Path, whole: Path, tmp_path: Path) -> None:
    """By the configuration that the stage wrote, with the hypotheses of one code; random codes and pushes beside it."""
    written = json.loads((whole / "causes.json").read_text())
    (words,) = [w for w in written["hypotheses"] if w.startswith("hold code:0 ")]
    small = ["--starts", "8", "--horizon", "2", "--controls", "39", "--latest_start", "6", "--no-video"]
    argv = ["--config", f"{whole}/causes.json", "--hypotheses", words, "--out", f"{tmp_path}/out", *small]
    interventions.main(cli.parse(interventions.InterventionsConfig, [*argv, "--threads", "1"], interventions.STAGE))
    result = Result.load(tmp_path / "out")
    (claim,) = result.notes["claims"]
    assert claim["hypothesis"] == words and claim["verdict"] in ("confirmed", "refuted", "no effect", "open")
    assert claim["random_n"] == 2 * 39 and claim["size"] in ("as foretold", "wrong", "open")
    assert artefacts.verify(tmp_path / "out") == []


def test_the_size_that_is_foretold_is_the_policys_own_probability(
    made: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded actions are random ones in part; without logits there is nothing else, which is said."""
    assert Result.load(whole).notes["foretold_are"] == "the policy's own probabilities"
    store, agent = RolloutStore(made / "rollouts"), load_semantic(made / "agent")
    columns, _ = store.pooled("h", "logits")
    chance_NA = torch.from_numpy(columns["logits"]).double().softmax(-1).numpy()
    with torch.no_grad():
        code_N = agent.code(agent.plane(torch.from_numpy(columns["h"]))).numpy()
    held = [w.split() for w in json.loads((whole / "causes.json").read_text())["hypotheses"] if w.startswith("hold")]
    assert held
    for _, code, _, _, quantity, _, number in held:
        ids = store.spec.distinct_actions()[quantity.removeprefix("prob:")]
        mine = code_N == int(code.removeprefix("code:"))
        assert float(number) == pytest.approx(chance_NA[mine][:, ids].sum(1).mean(), abs=5.1e-4)

    had = RolloutStore.column_names
    names = property(lambda store: [name for name in had.fget(store) if name != "logits"])  # type: ignore[attr-defined]
    monkeypatch.setattr(RolloutStore, "column_names", names)
    semantics.main(config_of(made, tmp_path / "out", "quality"))
    said = capsys.readouterr().out
    assert "causes.json foretells shares of recorded actions, random ones among them" in said
    assert re.search(
        r"of \d+ other states one has [\d.]+ as neighbours among the features and [\d.]+ in the plane\n", said
    )


def test_a_claim_may_name_an_action_that_does_nothing_of_its_own_at_these_starts(whole: Path, tmp_path: Path) -> None:
    """Near the ground downright does what right does; which starts are drawn must not decide what can be asked."""
    small = ["--starts", "8", "--horizon", "2", "--controls", "39", "--latest_start", "6", "--no-video"]
    words = ["shift plane:0 by +1 on prob:downright", "hold code:0 always on prob:rightwards as 0.1",
             "shift plane:0 by +1 on plane:1"]  # fmt: skip
    argv = ["--config", f"{whole}/causes.json", "--hypotheses", *words, "--out", f"{tmp_path}/out", *small]
    interventions.main(cli.parse(interventions.InterventionsConfig, [*argv, "--threads", "1"], interventions.STAGE))
    claims = Result.load(tmp_path / "out").notes["claims"]
    assert [claim["hypothesis"] for claim in claims] == words
    assert {claim["quantity"] for claim in claims} <= {"prob:downright@1..2", "prob:rightwards@1..2", "plane:1@2", None}


def test_words_choose_what_is_made_and_published_bounds_can_be_asked_for(made: Path, tmp_path: Path) -> None:
    semantics.main(config_of(made, tmp_path / "a", "names", "videos", "--select_returns"))
    have = artefacts.files_of(tmp_path / "a")
    assert "hover.html" not in have and "embeddings.png" not in have and "names.json" in have
    rows = Result.load(tmp_path / "a").tables["videos"]
    assert all(row["frames"] == 0 and row["why_none"] for row in rows)  # nobody has returns like that


def test_codes_are_held_against_descriptions(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {
        "falls": "truth(agent_vy) < -0.2",
        "goes on, to the right": "truth(agent_vx) > 0.1",
        "never": "truth(agent_x) < -1",
    }
    said = {"game": "coinrun", "enough_steps": 5000, "descriptions": words}
    artefacts.write_json(tmp_path / "said.json", said)
    more = ["--descriptions", f"{tmp_path}/said.json", "--match_draws", "19"]
    semantics.main(config_of(made, tmp_path / "out", "matches", *more))
    result = Result.load(tmp_path / "out")
    rows = {row["description"]: row for row in result.tables["matches"]}
    assert list(rows) == list(words) and rows["never"]["verdict"] == "not seen"
    store = RolloutStore(made / "rollouts")
    falls = store.pooled("truth/agent_vy")[0]["truth/agent_vy"] < -0.2
    assert rows["falls"]["share"] == pytest.approx(falls.mean())
    _, states = read_states(load_semantic(made / "agent"), made / "rollouts")
    mine = states.code_N == rows["falls"]["code"]
    assert rows["falls"]["phi"] == pytest.approx(np.corrcoef(mine, falls)[0, 1], abs=1e-6)
    assert len(result.tables["match_pairs"]) == 2 * (8 - len(states.dead))
    out = capsys.readouterr().out
    asked = (
        "of 3 descriptions match a code: a trial of the method: not known to be trained enough (unknown of 5,000 steps)"
    )
    assert asked in out
    artefacts.write_json(tmp_path / "any.json", {**said, "enough_steps": 0})
    semantics.main(config_of(made, tmp_path / "any", "matches", "--descriptions", f"{tmp_path}/any.json", *more[2:]))
    assert (
        Result.load(tmp_path / "any").notes["matches_are"] == "of a policy that was trained enough to be described so"
    )
    assert "never: not seen" in out
    semantics.main(config_of(made, tmp_path / "all", "names"))
    assert "matches" not in Result.load(tmp_path / "all").tables
    artefacts.write_json(tmp_path / "said.json", {**said, "game": "ninja"})
    with pytest.raises(UserError, match="the descriptions are of ninja, the rollouts of coinrun"):
        semantics.main(config_of(made, tmp_path / "other", "matches", *more))
    artefacts.write_json(tmp_path / "said.json", {**said, "descriptions": {"x": "truth(mood) > 1"}})
    with pytest.raises(UserError, match="mood"):
        semantics.main(config_of(made, tmp_path / "other", "matches", *more))
    assert not (tmp_path / "other").exists()
    for wrong, why in ((["matches"], "needs --descriptions"), ([*more, "--least_match", "1"], "between 0 and 1"),
                       ([*more, "--match_draws", "5"], "match_draws")):  # fmt: skip
        with pytest.raises(UserError, match=why):
            semantics.main(config_of(made, tmp_path / "other", *wrong))


def test_what_cannot_be_is_refused_before_anything_is_written(made: Path, tmp_path: Path) -> None:
    def refused(said: str, *more: str) -> None:
        with pytest.raises(UserError, match=said):
            semantics.main(config_of(made, tmp_path / "out", *more))
        assert not (tmp_path / "out").exists()

    refused("states, --hover_states asks for 9,999,999", "hover", "--hover_states", "9999999")
    refused("states, --embedding_states asks for", "embeddings", "--embedding_states", "9999999")
    few = "too few for tsne, which needs at least 100; give --embedding_states 100 or more"
    refused(few, "embeddings", "--embedding_states", "3")
    refused("curves needs --curves", "curves")
    refused("--run_most 3 is less than --run_least 5", "videos", "--run_most", "3")
    with new_run(tmp_path / "plain", "train", {}) as run:
        agent = load_semantic(made / "agent")
        save_agent(RecurrentAgent(AgentConfig(**{**vars(agent.config)}), agent.spec), run.path)
    refused("holds no policy with semantic clusters", "--agent", f"{tmp_path}/plain")
    refused("was recorded with agent", "--agent", f"{made}/trained")
    for text, said in (("[]", "must name codes"), ('{"9": "x"}', "there is no code '9'"), ('{"1": ""}', "one line")):
        (tmp_path / "names.json").write_text(text)
        refused(said, "names", "--names", f"{tmp_path}/names.json")


def test_all_codes_dead_but_one_is_said(made: Path) -> None:
    agent = load_semantic(made / "agent")
    _, states = read_states(agent, made / "rollouts")
    with pytest.raises(UserError, match="states have code 3: the other 7 codes are dead"):
        require_clusters(replace(states, code_N=np.full_like(states.code_N, 3)))


def test_agreement_is_scikit_learns() -> None:
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    rng = np.random.default_rng(0)
    for kinds in ((4, 6), (1, 3), (2, 2)):
        a, b = (rng.integers(k, size=60) for k in kinds)
        for x, y in ((a, b), (a, a), (b, a)):
            want = adjusted_rand_score(x, y), normalized_mutual_info_score(x, y)
            assert agree(x, y) == pytest.approx(want, abs=1e-9)


# Curves


def progress(path: Path, returns: list[float], column: str = "eprewmean") -> Path:
    rows = [f"{i * 100},{r}" for i, r in enumerate(returns, 1)]
    path.write_text("\n".join([f"misc/total_timesteps,{column}", *rows]) + "\n")
    return path


def backwards(path: Path) -> Path:
    """Two trainings, one after the other in a file."""
    lines = progress(path, [1.0] * 15).read_text().splitlines()
    path.write_text("\n".join([*lines, *lines[1:]]) + "\n")
    return path


def test_curves_are_means_over_seeds_normalised_with_intervals(tmp_path: Path) -> None:
    words = []
    for method, base in (("sppo", 8.0), ("ppo", 7.0)):
        for seed in (1, 2, 3):
            for game in ("coinrun", "ninja"):
                file = progress(tmp_path / f"{method}{seed}{game}.csv", [0.0] * 10 + [base + seed] * 60)
                words.append(f"{method}/{game}/{seed}={file}")
    words += [f"sppo/coinrun/1/test={progress(tmp_path / 't.csv', [5.0] * 20)}"]
    config = cli.parse(train.TrainConfig, ["--preset", "semantic", "--seed", "9"], train.STAGE)
    with new_run(tmp_path / "run", "train", config) as run:
        progress(run.path / "progress.csv", [6.0] * 20)
        run.record("steps", 2000, "environment steps")
    with new_run(tmp_path / "evaluation", "evaluate", {}, {"agent": tmp_path / "run"}) as run:
        result = Result()
        result.scalar("return_mean", 10.0, "return", 5)
        result.save(run.path)
    words += [f"{tmp_path}/run", f"{tmp_path}/evaluation"]
    out = ["--curves", *words, "--normalize-and-reduce", "--drop", "2", "--distribution_mode", "easy"]
    argv = ["curves", *out, "--out", f"{tmp_path}/out"]
    semantics.main(cli.parse(semantics.SemanticsConfig, argv, semantics.STAGE))
    assert artefacts.verify(tmp_path / "out") == []
    with open(tmp_path / "out" / "curve_ends.csv", newline="") as file:
        ends = {(r["method"], r["game"], r["split"]): r for r in csv.DictReader(file)}
    band = ends["sppo", "coinrun", "train"]
    assert band["seeds"] == "3" and float(band["return"]) == pytest.approx((10 - 5) / 5, abs=0.02)
    assert float(band["low"]) < float(band["return"]) < float(band["high"])
    whole = float(ends["sppo", curves.ALL_GAMES, "train"]["return"])
    assert whole == pytest.approx(((10 - 5) / 5 + (10 - 3.5) / 6.5) / 2, abs=0.02)
    assert float(ends["sppo", "coinrun", "test"]["return"]) == 0
    own, point = (ends["semantic", "coinrun", split] for split in ("train", "test"))
    assert own["seeds"] == "1" and float(own["return"]) == pytest.approx(0.2) and own["low"] in ("", "nan")
    assert float(point["return"]) == 1 and float(point["steps"]) == 2000


def test_agents_of_another_world_and_the_agent_itself_are_no_comparison(made: Path, tmp_path: Path) -> None:
    fruitbot = str(cli.ROOT / "bundles" / "fruitbot" / "agent")
    with pytest.raises(UserError, match="--plain .* plays procgen/fruitbot, these are rollouts of procgen/coinrun"):
        semantics.main(config_of(made, tmp_path / "out", "--plain", fruitbot))
    with pytest.raises(UserError, match="--others .* is the agent itself"):
        semantics.main(config_of(made, tmp_path / "out", "--others", f"{made}/agent"))


def test_behaviours_are_of_this_recording(made: Path, tmp_path: Path) -> None:
    """Those of another recording of the same agent gave numbers of steps that were never labelled, or a KeyError."""
    agent = fingerprint(load_semantic(made / "agent"))
    index_N2 = RolloutStore(made / "rollouts").pooled("h")[1]
    with new_run(tmp_path / "other", "record", {}) as run:
        run.facts = {"agent": agent, "source": "real"}
    for name, source in (("own", made / "rollouts"), ("foreign", tmp_path / "other")):
        with new_run(tmp_path / name, behaviours.STAGE, {}, {"rollouts": source}) as run:
            label_N = np.arange(len(index_N2)) % 2
            arrays = {"labels_real": label_N, "index_real": index_N2, "sample_labels": np.zeros(0, np.int64)}
            Result(arrays=arrays, notes={"behaviours": 2}).save(run.path)
            artefacts.write_json(run.path / behaviours.NAMES, {"0": "even", "1": "odd"})
            run.facts = {"agent": agent}
    for name, said in (("foreign", "foreign was not made from .*rollouts"), ("other", "a 'behaviours' dir")):
        with pytest.raises(UserError, match=said):
            semantics.main(config_of(made, tmp_path / "out", "quality", "--behaviours", f"{tmp_path / name}"))
        assert not (tmp_path / "out").exists()
    semantics.main(config_of(made, tmp_path / "out", "quality", "--behaviours", f"{tmp_path}/own"))
    assert "behaviours" in {row["with"] for row in Result.load(tmp_path / "out").tables["agreement"]}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: f"a/coinrun/1={progress(p / 'x.csv', [1.0], 'reward')}", "no column eprewmean"),
        (lambda p: f"a/coinrun/1={progress(p / 'x.csv', [])}", "no rows"),
        (lambda p: f"a/coinrun/1={p / 'none.csv'}", "cannot read"),
        (lambda p: f"a/coinrun={p / 'none.csv'}", "expected a run directory, METHOD/GAME/SEED=FILE"),
        (lambda p: f"a/coinrun/1={backwards(p / 'x.csv')}", r"x.csv: row 16 is at step 100, the one before at 1,500 "),
        (lambda p: f"a/coinrun/1={progress(p / 'x.csv', [1.0, 2.0])}", "of which the first 10 are dropped"),
        (lambda p: str(p), "no such run directory|manifest"),
    ],
)
def test_curves_that_cannot_be_read_are_user_errors(make: object, said: str, tmp_path: Path) -> None:
    argv = ["curves", "--curves", make(tmp_path), "--out", f"{tmp_path}/out"]  # type: ignore[operator]
    with pytest.raises(UserError, match=said):
        semantics.main(cli.parse(semantics.SemanticsConfig, argv, semantics.STAGE))
    assert not (tmp_path / "out").exists()


def test_the_moving_average_begins_where_the_curve_does() -> None:
    assert curves.smoothed(np.array([4.0, 0.0, 0.0]), 0.5).tolist() == [4.0, 2.0, 1.0]


def test_the_panel_says_what_makes_embeddings_and_that_makes_them(made: Path, tmp_path: Path) -> None:
    """As it stands, from a run without them whose recording holds fewer states than are asked for by default."""
    argv = ["quality", "--surrogates", "0", "--agent", f"{made}/agent", "--rollouts", f"{made}/rollouts"]
    config = cli.parse(semantics.SemanticsConfig, [*argv, "--out", f"{tmp_path}/runs/q"], semantics.STAGE)
    semantics.main(config)
    built = ["build", f"{tmp_path}/runs", "--out", f"{tmp_path}/panel", "--threads", "1"]
    panel.main(cli.parse(panel.PanelConfig, built, panel.STAGE))
    page = (tmp_path / "panel" / "panel.html").read_text()
    page = re.sub("</?i>", "", page)
    (line,) = map(unescape, re.findall("<code>(python -m analysis.semantics quality embeddings [^<]*)</code>", page))
    semantics.main(cli.parse(semantics.SemanticsConfig, shlex.split(line)[3:], semantics.STAGE))
    made_again = Result.load(tmp_path / "runs" / "q_embeddings")
    assert {"plane", "tsne"} <= made_again.arrays.keys() and "effects" in made_again.tables


def test_the_panel_names_every_directory_that_its_studies_stand_on(made: Path, whole: Path, tmp_path: Path) -> None:
    built = ["build", f"{made}/agent", f"{made}/rollouts", f"{whole}", "--out", f"{tmp_path}/panel", "--threads", "1"]
    panel.main(cli.parse(panel.PanelConfig, built, panel.STAGE))
    page = (tmp_path / "panel" / "panel.html").read_text()
    (listed,) = re.findall("<caption>Every directory behind this page.*?</table>", page, re.S)
    for path in (made / "agent", made / "rollouts", made / "trained", whole):
        assert artefacts.manifest_sha256(path)[:12] in listed, path.name


def test_the_panel_says_of_every_code_what_it_is_about(made: Path, whole: Path, tmp_path: Path) -> None:
    """Effects are sorted by code: the first rows of the table were the first codes' alone."""
    panel.main(cli.parse(panel.PanelConfig, ["build", f"{whole}", "--out", f"{tmp_path}/panel"], panel.STAGE))
    page = (tmp_path / "panel" / "panel.html").read_text()
    (told,) = re.findall("<caption>What the codes are about.*?</table>", page, re.S)
    effects = Result.load(whole).tables["effects"]
    for code in {row["code"] for row in effects}:
        mine = [row for row in effects if row["code"] == code]
        assert told.count(f"<span>{escape(mine[0]['name'])}</span>") == min(len(mine), 6)
        assert f"<span>{mine[0]['what']}</span>" in told
