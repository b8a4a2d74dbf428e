"""The two validation stages on real CoinRun with an untrained agent and simulator, and their mistakes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from agents.load import load_agent
from agents.play import Exploration
from agents.record import RecordConfig, main as record
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from analysis.behaviours.__main__ import BehavioursConfig, main as behaviours
from analysis.behaviours.config import BehaviourOptions
from analysis.shared.directions import fit_pca
from analysis.shared.sources import check_own, open_samples
from core import artefacts, config as cli
from core.artefacts import Result, verify
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from envs.procgen import ProcgenEnv, ProcgenOptions
from generative import record_samples
from generative.load import load_simulator
from generative.rssm import ModelConfig
from generative.simulator import save_simulator, simulator_of
from validation.fidelity.__main__ import FidelityConfig, main as fidelity
from validation.interventions.__main__ import InterventionsConfig, main as interventions
from validation.interventions.members import agreement_of
from validation.report.commands import repeat
from validation.report.lineage import trace

SMALL = ModelConfig(
    deterministic_size=16, hidden_size=16, groups=4, classes=4, depth=4, head_layers=1, latent_size=8
)  # fmt: skip
WORLD = ProcgenOptions(game="coinrun", use_backgrounds=False, restrict_themes=True)
FEW = {"starts": 6, "horizon": 2, "controls": 39, "latest_start": 8, "threads": 1}


@pytest.fixture(scope="module")
def dirs(tmp_path_factory):
    """Everything the two stages read, made by the stages that write it."""
    root = tmp_path_factory.mktemp("validation")
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=16, hidden_size=8), ProcgenEnv(WORLD, 1).spec)
    with artefacts.new_run(root / "agent", "train", {}) as run:
        save_agent(agent, run.path)
    with artefacts.new_run(root / "simulator", "train_gen_model", {}, {"agent": root / "agent"}) as run:
        save_simulator(simulator_of(SMALL, agent), run.path)
    record(RecordConfig(agent=root / "agent", out=root / "rollouts", episodes=8, slots=8, threads=1))
    with RolloutStore(root / "rollouts") as store:
        columns, index = store.pooled("h")
    basis = fit_pca(columns["h"], 4, fingerprint(agent))
    with artefacts.new_run(root / "hidden_states", "hidden_states", {}, {"rollouts": root / "rollouts"}) as run:
        basis.save(run.path)
        c = basis.project(torch.from_numpy(columns["h"])).numpy()
        Result(arrays={"index": index, "source": np.zeros(len(index), np.int8), "c_pca": c}).save(run.path)
    fit = BehaviourOptions(clusters=3, filmstrips=0, surrogates=0)
    behaviours(BehavioursConfig(rollouts=root / "rollouts", out=root / "behaviours", fit=fit, threads=1))
    return root


def test_interventions_stage(dirs):
    out = dirs / "interventions"
    interventions(
        InterventionsConfig(
            simulator=(dirs / "simulator",),
            hidden_states=dirs / "hidden_states",
            behaviours=dirs / "behaviours",
            out=out,
            basis_kind="pca",
            directions=("0", "2"),
            **FEW,
        )  # fmt: skip
    )
    result = Result.load(out)
    assert verify(out) == []
    assert {"effects.png", "predicted_vs_observed.png", "effects.csv"} <= {p.name for p in out.iterdir()}
    rows = result.tables["effects"]
    assert {r["world"] for r in rows} == {"real", "simulator"} and {r["direction"] for r in rows} == {"pca:0", "pca:2"}
    assert {r["n"] for r in rows} == {6} and {r["random_n"] for r in rows} == {78, None}
    assert result.scalars["zero_change_real"]["value"] == 0 == result.scalars["zero_change_simulator"]["value"]
    # At step 0 both worlds are the same agent in the same state.
    now = {(r["world"], r["hypothesis"], r["quantity"]): r["observed"] for r in rows if "@" not in r["quantity"]}
    for (world, hypothesis, quantity), value in now.items():
        if world == "real":
            assert value == pytest.approx(now["simulator", hypothesis, quantity], abs=1e-6)
    assert len(result.arrays["behaviour"]) == 6 and 0 < result.scalars["behaviour_labels_found"]["value"] <= 1
    assert result.notes["claim"].count("pca:") == 2 and result.notes["gate"]["rows"] > 50
    assert {"paths.csv"} <= {p.name for p in out.iterdir()}
    for claim in result.notes["claims"]:
        assert set(claim["parts"]) == {"exists", "size", "special", "through_world", "needed"}
    # The rollouts that the directions were fitted to, and the levels of both pools, are of their own.
    assert result.notes["warnings"] == []
    assert {"paired_0.mp4", "paired_1.mp4", "needs.csv"} <= {p.name for p in out.iterdir()}
    assert result.arrays["film/0"].shape == (3, 4, 3, 64, 64, 3)
    # The same start, so the same first frame with and without; the simulated one is the simulator's picture of it.
    film = result.arrays["film/0"]
    assert np.array_equal(film[:, 0, 0], film[:, 1, 0]) and np.array_equal(film[:, 2, 0], film[:, 3, 0])
    assert {r["event"] for r in result.tables["needs"]} == {"death", "jump_started", "reward"}  # the game's own


def member(dirs):
    """Another simulator of the same agent, in member/: of an ensemble with simulator/."""
    if not (dirs / "member").exists():
        torch.manual_seed(3)
        with artefacts.new_run(dirs / "member", "train_gen_model", {}, {"agent": dirs / "agent"}) as run:
            save_simulator(simulator_of(SMALL, load_agent(dirs / "agent")), run.path)
    return dirs / "simulator", dirs / "member"


def test_claims_say_whether_the_members_of_an_ensemble_foretell_them(dirs):
    few = {
        "hidden_states": dirs / "hidden_states",
        "basis_kind": "pca",
        "directions": ("0", "2"),
        "video": False,
        **FEW,
    }
    alone, both = (
        interventions(InterventionsConfig(simulator=some, out=dirs / f"of_{len(some)}", **few))
        or Result.load(dirs / f"of_{len(some)}")
        for some in (member(dirs)[:1], member(dirs))
    )
    # The first one alone chooses and foretells: the others change nothing of that.
    assert repr(alone.tables["effects"]) == repr(both.tables["effects"])  # NaN is not itself
    assert "members" not in alone.tables
    rows, claims = both.tables["members"], both.notes["claims"]
    assert len(rows) == 2 * len(claims) and {r["member"] for r in rows} == {1, 2}
    for claim in claims:
        mine = {r["member"]: r for r in rows if (r["hypothesis"], r["of"]) == (claim["hypothesis"], claim["quantity"])}
        g = both.notes["hypotheses"].index(claim["hypothesis"])
        for m, where in ((1, "simulated"), (2, "simulated by member 2")):
            assert mine[m]["foretold"] == pytest.approx(both.arrays[f"{where}/{claim['quantity']}"][g].mean(), abs=1e-6)
        assert claim["members"] == claim["parts"]["members"]["answer"] in ("yes", "no", "open")
        assert "members of the ensemble" in claim["text"]
    assert verify(dirs / "of_2") == []
    assert {"simulator", "other_simulator_2"} <= artefacts.read_manifest(dirs / "of_2")["inputs"].keys()


@pytest.mark.parametrize(
    ("first", "other", "noise", "answer"),
    [
        (0.5, 0.5, 0.05, "yes"),
        (0.5, 0.68, 0.05, "yes"),  # less than half of it apart
        (0.02, -0.05, 0.02, "yes"),  # less than the smallest size of interest apart
        (0.5, -0.5, 0.05, "no"),
        (0.5, 1.2, 0.05, "no"),
        (0.5, 0.0, 5.0, "open"),
    ],
)
def test_members_agree_where_their_difference_is_of_no_interest(first, other, noise, answer):
    rng = np.random.default_rng(0)
    foretold = np.array([first, first, other]) + noise * rng.standard_normal((60, 3))
    found = agreement_of(foretold, 0.1, 0.5, rng)
    assert found.answer == answer
    assert [e.value for e in found.foretold] == pytest.approx(foretold.mean(0))


def test_members_that_differ_at_few_starts_are_not_told_to_agree():
    """By 6 spreads at one in 20, .3 on the mean, where .25 are of interest: of 32 starts a fifth of samples has none,
    and none in hand is as large as the quantity's own range, which is what such a start could show."""
    said = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        quantity, first = rng.standard_normal(32), 0.5 + 0.1 * rng.standard_normal(32)
        other = first - 6 * (rng.random(32) < 0.05)
        said.append(agreement_of(np.stack([first, other], 1), 0.1, float(np.ptp(quantity)), rng).answer)
    assert said.count("yes") <= 1  # of 40; 11 where the effects in hand were the largest that there could be


def test_samples_of_an_ensemble_begin_at_the_same_frames(dirs):
    out, simulators = dirs / "ensemble", member(dirs)
    words = ["--simulator", *simulators, "--rollouts", dirs / "rollouts", "--samples", 5, "--steps", 4, "--threads", 1]
    stage(record_samples, "RecordSamplesConfig", *words, "--batch", 2, "--film", "--out", out)
    assert verify(out) == [] and len(list(out.glob("sample_*.mp4"))) == 5
    with RolloutStore(out) as store:
        facts = store.manifest["facts"]
        assert len(store) == 10 and "simulator" not in facts and len(set(facts["simulators"])) == 2
        about = [store.meta(e) for e in range(len(store))]
        assert [(a["sample"], a["simulator"]) for a in about] == [(i, m) for i in range(5) for m in (1, 2)]
        assert all(a["start"] == b["start"] for a, b in zip(about[::2], about[1::2], strict=True))
        pairs = [(store.episode(e), store.episode(e + 1)) for e in range(0, 10, 2)]
        assert all(e.latent is None and not e.world for pair in pairs for e in pair)
    # Each is what that simulator alone makes of the start.
    for m, simulator in enumerate(simulators):
        one = ["--simulator", simulator, *words[3:], "--batch", 2, "--out", dirs / f"alone_{m}"]
        stage(record_samples, "RecordSamplesConfig", *one)
        with RolloutStore(dirs / f"alone_{m}") as store:
            for i, pair in enumerate(pairs):
                assert np.array_equal(pair[m].obs["frames"], store.episode(i).obs["frames"])
    rows = {(r["measure"], r["step"]): r for r in Result.load(out).tables["members"]}
    frames = [[e.obs["frames"][3].astype(float) / 255 for e in pair] for pair in pairs]
    assert rows["frame_mse", 3]["value"] == pytest.approx(np.mean([(a - b) ** 2 for a, b in frames]), rel=1e-4)
    assert rows["same_action", 3]["n"] == 5 and 0 <= rows["same_action", 3]["value"] <= 1
    with pytest.raises(UserError, match="holds samples of 2 simulators"):
        check_own(open_samples(out), load_simulator(simulators[0]), simulators[0])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "several simulators have no latents in common"),
        (("--rollouts", "rollouts", "--actions", "all"), "--actions all is for one simulator"),
    ],
)
def test_mistakes_of_an_ensembles_samples_leave_nothing_on_disk(dirs, flags, said):
    words = [dirs / w if w == "rollouts" else w for w in flags]
    with pytest.raises(UserError, match=said):
        stage(record_samples, "RecordSamplesConfig", "--simulator", *member(dirs), *words, "--out", dirs / "no")
    assert not (dirs / "no").exists()


def stage(module, config, *words):
    module.main(cli.parse(getattr(module, config), [str(w) for w in words], module.STAGE))


def study_of(dirs, file, out):
    """As ``python -m validation.interventions --config FILE`` reads it, at a small size."""
    few = dirs / "few.json"
    few.write_text(json.dumps(FEW))
    where = [f"--simulator={dirs / 'simulator'}", f"--hidden_states={dirs / 'hidden_states'}", "--basis_kind=pca"]
    argv = [f"--config={few}", f"--config={file}", f"--out={out}", *where]
    return cli.parse(InterventionsConfig, argv, "interventions")


def test_a_study_file_is_a_study_and_says_what_it_was(dirs):
    out, file = dirs / "study", dirs / "study.json"
    said = {
        "hypotheses": ["swap 0 1 always", "collapse 2 necessary for calm", "shift 1=2 through memory",
                       "shift 0 by +1 for 2 steps", "patch all clean calm", "resample 3 through world"],
        "events": ["calm: action in (none, left, right) or value < 100"], "starts": 8, "video": False,
    }  # fmt: skip
    file.write_text(json.dumps(said | {"events": ["calm: value < prob(up) * 1e9 and step < 99"]}))
    with pytest.raises(UserError, match=r"patch pca:all clean calm \(noising\)' is about 0 of 8 starts .*'calm' is so"):
        interventions(study_of(dirs, file, out))
    said["hypotheses"].remove("patch all clean calm")
    file.write_text(json.dumps(said))
    interventions(study_of(dirs, file, out))
    result = Result.load(out)
    assert verify(out) == [] and not list(out.glob("*.mp4"))
    assert result.notes["hypotheses"][1] == "collapse pca:2" and {r["n"] for r in result.tables["effects"]} == {8}
    resolved = artefacts.read_manifest(out)["config"]
    assert resolved["starts"] == 8 and resolved["hypotheses"] == said["hypotheses"]
    assert [c.get("role") for c in result.notes["claims"]] == [None, None, None, None, "necessary"]
    # Enough controls that one of five named claims could stand out.
    assert {r["random_n"] for r in result.tables["effects"]} == {198, None}
    # Through memory the real world stays what it was: nothing but the agent can have changed.
    memory = result.notes["hypotheses"].index("shift pca:1 by +2 through memory")
    for q in ("reward@2", "ended@2"):
        assert np.abs(result.arrays[f"observed/{q}"][memory]).max() == 0


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"hypothesis": ["shift 0 by 1"]}, "unknown key 'hypothesis' (did you mean hypotheses?)"),
        ({"hypotheses": ["shift 9 by 1"]}, "direction pca:9 does not exist"),
        ({"hypotheses": ["shift 1=1 when behaviour=0"]}, "speaks of a behaviour: give --behaviours"),
        ({"hypotheses": ["collapse 1 necessary for jmup"], "events": ["jump: action == up"]}, "did you mean jump?"),
        ({"hypotheses": ["shift 1=1 on valeu"]}, "cannot read 'on valeu'"),
        ({"hypotheses": ["shift 1=1 on prob:uup"]}, "no quantity 'prob:uup' (did you mean prob:up?)"),
        ({"hypotheses": ["shift 1=1 on event:eats"]}, "or define it: --events 'eats: CONDITION'; there are:"),
        ({"hypotheses": ["shift 1=1 on time:eats"]}, "or define it: --events 'eats: CONDITION'; there are:"),
        ({"hypotheses": ["collapse 1 necessary for eats"]}, "or define it: --events 'eats: CONDITION'; there are:"),
        ({"events": ["jump: action == uup"]}, "no action 'uup' (did you mean up?); there are columns: value"),
        ([], "holds no configuration"),
    ],
)
def test_mistakes_in_a_study_file_leave_nothing_on_disk(dirs, said, reason):
    file = dirs / "bad.json"
    file.write_text(json.dumps(said))
    with pytest.raises(UserError) as error:
        interventions(study_of(dirs, file, dirs / "no"))
    assert reason in str(error.value) and not (dirs / "no").exists()


def test_fidelity_stage(dirs, capsys):
    out = dirs / "fidelity"
    fidelity(FidelityConfig(out=out, horizon=4, windows=10, batch=4, **fidelity_of(dirs)))
    result = Result.load(out)
    pictures = {"horizons.png", "strip.png", "calibration.png", "dreams.png", "confusion.png", "counterfactual.png"}
    videos = {"paired.mp4", "counterfactual.mp4"}
    assert verify(out) == [] and pictures | videos <= {p.name for p in out.iterdir()}
    rows = result.tables["fidelity"]
    measures = {r["measure"] for r in rows}
    both = {"frame_mse", "frame_psnr", "frame_ssim", "action_agreement", "value_error", "h_error", "terminal_brier"}
    assert both | {f"{m}_teacher_forced" for m in both} <= measures
    assert {"return_distance", "length_distance", "action_distance", "transition_distance", "h_classifier"} <= measures
    assert {"counterfactual_top1", "gradient_sign_value", "policy_dependence", "frame_mse_other_policy"} <= measures
    assert result.arrays["strip_real"].dtype == np.uint8 and result.notes["held_out"] is True
    # Row 0 of the strip is the frame that the simulation starts from.
    frame = rows[0]
    assert frame["measure"] == "frame_mse" and frame["horizon"] == 0 and frame["baseline_copy"] == 0
    [start] = [r for r in rows if r["measure"] == "frame_ssim" and r["horizon"] == 0]
    assert start["baseline_copy"] == pytest.approx(1, abs=1e-5)
    for r in rows:
        assert r["low"] is None or r["low"] <= r["simulated"] + 1e-9, r
    tests = result.tables["tests"]
    assert {"counterfactual_top1", "gradient_sign_value"} <= {t["measure"] for t in tests}
    assert all(t["p"] <= t["q"] <= 1 for t in tests)
    assert "frame_psnr" in capsys.readouterr().out


def test_every_rung_of_fidelity_at_once(dirs):
    """With a judge, a further policy, an ensemble of two, and the agent's recorded state to begin from."""
    other_agent(dirs)
    torch.manual_seed(2)
    with artefacts.new_run(dirs / "twin", "train_gen_model", {}, {"agent": dirs / "agent"}) as run:
        save_simulator(simulator_of(SMALL, load_agent(dirs / "agent")), run.path)
    out = dirs / "fidelity_all"
    told = fidelity_of(dirs, simulator="simulator twin", judge="agent2", rungs="all", start_from="recorded")
    fidelity(FidelityConfig(out=out, horizon=4, windows=6, ranking_steps=3, video=False,
                            policies=(dirs / "agent2",), **told))  # fmt: skip
    result = Result.load(out)
    rows = {(r["measure"], r["horizon"]): r for r in result.tables["fidelity"]}
    assert verify(out) == []
    for measure in ("frame_psnr_known", "delta_psnr", "policy_kl", "action_kappa", "judge_agreement",
                    "effect_sign_action", "effect_sign_action_straight_through", "dreams_alive",
                    "ensemble_coverage_frame", "ensemble_rank_value"):  # fmt: skip
        assert (measure, 1) in rows, measure
    assert {("ranking_spearman", 3), ("ranking_regret", 3), ("there_and_back_psnr", 8)} <= rows.keys()
    assert len(result.tables["policies"]) == 13 and result.notes["start_from"] == "recorded"
    # From the recorded state and the real frame, the first step is the real agent's own.
    assert rows["action_agreement", 0]["simulated"] == 1 and rows["frame_mse", 0]["simulated"] == 0
    inputs = artefacts.read_manifest(out)["inputs"]
    assert {"simulator", "other_simulator_2", "other_judge", "other_policy_1"} <= inputs.keys()
    assert trace(out).simulators.keys() == trace(dirs / "simulator").simulators.keys(), "others are compared with only"
    assert repeat(out, dirs / "again").line.split()[3::2] == ["--config", "--out"], "no directory has moved"


def fidelity_of(dirs, **changed):
    """What every comparison here is told."""
    told = {"simulator": "simulator", "rollouts": "rollouts", **changed}
    paths = {k: dirs / v if isinstance(v, str) and k not in ("rungs", "start_from") else v for k, v in told.items()}
    paths["simulator"] = tuple(dirs / name for name in told["simulator"].split())
    return {"rungs": "quick", "starts": 6, "latest_start": 8, "threads": 1, **paths}


def test_the_counterfactual_part_is_left_out_only_aloud(dirs, capsys):
    out = dirs / "fidelity_without"
    fidelity(FidelityConfig(out=out, horizon=2, windows=6, counterfactual=False, video=False, **fidelity_of(dirs)))
    result = Result.load(out)
    assert "left out: counterfactual actions" in capsys.readouterr().out
    assert not {r["measure"] for r in result.tables["fidelity"]} & {"counterfactual_top1", "policy_dependence"}
    assert not list(out.glob("*.mp4")) and not (out / "counterfactual.png").exists()


def test_another_agent_may_lend_its_actions(dirs):
    other_agent(dirs)
    out = dirs / "fidelity_other"
    told = fidelity_of(dirs, other_agent="agent2")
    fidelity(FidelityConfig(out=out, horizon=2, windows=6, video=False, **told))
    assert "--other_agent" in Result.load(out).notes["other_policy"]
    assert "other_agent" in artefacts.read_manifest(out)["inputs"]


def other_agent(dirs):
    """An agent of other weights in agent2/ and a simulator around it in simulator2/."""
    if (dirs / "agent2").exists():
        return
    for name, greedy in (("exploring", False), ("greedy", True)):
        steps = {"num_steps": 12, "slots": 6, "exploration": Exploration(greedy=greedy, explore_share=1.0, random=0.5)}
        record(RecordConfig(agent=dirs / "agent", out=dirs / name, threads=1, **steps))
    torch.manual_seed(1)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=16, hidden_size=8), ProcgenEnv(WORLD, 1).spec)
    with artefacts.new_run(dirs / "agent2", "train", {}) as run:
        save_agent(agent, run.path)
    with artefacts.new_run(dirs / "simulator2", "train_gen_model", {}) as run:
        save_simulator(simulator_of(SMALL, agent), run.path)


def test_dreams_of_a_greedy_record_are_greedy(dirs):
    other_agent(dirs)
    out, told = dirs / "fidelity_greedy", fidelity_of(dirs, rollouts="greedy")
    fidelity(FidelityConfig(out=out, horizon=4, windows=6, counterfactual=False, video=False, **told))
    [row] = [r for r in Result.load(out).tables["fidelity"] if r["measure"] == "length_difference"]
    assert row["simulated"] is not None and row["n"] >= 4  # windows that reach the horizon
    assert not any("explored" in words for words in Result.load(out).notes["left_out"])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"simulator": "simulator2"}, "was recorded with agent"),
        ({"rollouts": "agent"}, "holds no rollouts"),
        ({"rollouts": "exploring", "horizon": 4}, "explored in all 6 episodes, .* without exploration .*record.py"),
        ({"horizon": 5000}, r"--horizon 5000: 0 of 8 episodes .* --horizon \d+ is the most that 4 episodes reach"),
        ({"other_agent": "agent"}, "is the simulator's own agent"),
        ({"other_agent": "agent2", "counterfactual": False}, "leave --no-counterfactual out"),
        ({"other_agent": "simulator"}, "holds no agent"),
        ({"judge": "agent", "rungs": "all"}, "--judge .* is the simulator's own agent"),
        ({"judge": "agent2"}, "--judge is measured with --rungs all, not with --rungs quick"),
        ({"simulator": "simulator simulator2", "rungs": "all"}, "the members of an ensemble are of one agent"),
        ({"simulator": "simulator simulator", "rungs": "all"}, "is the same as"),
        ({"starts": 1}, "--starts must be at least 2"),
    ],
)
def test_mistakes_of_fidelity_leave_nothing_on_disk(dirs, changed, said):
    other_agent(dirs)
    with pytest.raises(UserError, match=said):
        fidelity(FidelityConfig(out=dirs / "no", **fidelity_of(dirs, **changed)))
    assert not (dirs / "no").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"directions": ("9",)}, "direction pca:9 does not exist"),
        ({"basis_kind": "icaa"}, "no 'icaa' basis"),
        ({"hidden_states": "rollouts"}, "basis"),
        ({"simulator": ("agent",)}, "holds no simulator"),
        ({"simulator": ()}, "--simulator names no directory"),
        ({"simulator": ("simulator", "simulator")}, "is the same as"),
        ({"simulator": ("simulator", "simulator2")}, "the members of an ensemble are of one agent"),
        ({"behaviours": "rollouts"}, "behaviours"),
        ({"choosing_level": -1}, "--choosing_level must be at least 0, not -1"),
    ],
)
def test_mistakes_leave_nothing_on_disk(dirs, flags, said):
    flags = {k: dirs / v if k in ("hidden_states", "behaviours") else v for k, v in flags.items()}
    flags["simulator"] = tuple(dirs / name for name in flags.get("simulator", ("simulator",)))
    other_agent(dirs)
    config = {
        "hidden_states": dirs / "hidden_states", "basis_kind": "pca", "out": dirs / "mistake", **FEW, **flags,
    }  # fmt: skip
    with pytest.raises(UserError, match=said):
        interventions(InterventionsConfig(**config))
    assert not (dirs / "mistake").exists()


def test_a_basis_of_another_agent_is_refused(dirs):
    basis = fit_pca(np.random.default_rng(0).standard_normal((50, 8)), 4, "0123456789abcdef")
    with artefacts.new_run(dirs / "other", "hidden_states", {}) as run:
        basis.save(run.path)
    with pytest.raises(UserError, match="was fitted on agent 0123456789abcdef"):
        interventions(
            InterventionsConfig(
                simulator=(dirs / "simulator",), hidden_states=dirs / "other", basis_kind="pca", out=dirs / "no"
            )
        )


@pytest.mark.parametrize(
    ("config", "main", "word"), [(InterventionsConfig, interventions, "--hidden_states"),
                                 (FidelityConfig, fidelity, "--rollouts")]
)  # fmt: skip
def test_the_command_line_says_what_is_wrong_in_one_line(dirs, config, main, word, capsys):
    nowhere = str(dirs / "nowhere")
    with pytest.raises(SystemExit) as ended:
        cli.run(config, main, "a stage", ["--simulator", nowhere, word, nowhere, "--out", str(dirs / "no")])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1
