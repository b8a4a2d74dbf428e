"""Neural MMO's policies through the stages that every agent goes through: record, bases, behaviours, dynamics,
patching, interventions; at debug size, with an untrained policy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from agents import record
from agents.load import load_agent
from agents.policies import PolicyAgent, save_policy
from analysis import hidden_states
from analysis.behaviours import __main__ as behaviours
from analysis.dynamics import __main__ as dynamics
from analysis.patching import __main__ as patching
from analysis.shared.units import units
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.directions import load_basis
from core.episodes import RolloutStore
from core.interventions import AtSteps, OnRows, Shift
from core.roll import heads_at
from core.trees import flatten
from envs.nmmo import FEATURES, NmmoEnv, NmmoOptions
from envs.registry import agents_a_world, make, renewed
from validation.hypotheses.grammar import Hypothesis
from validation.interventions import __main__ as interventions
from validation.interventions.alone import asked_in, table_of
from validation.interventions.bench import Bench, effects_in
from validation.interventions.options import StudyOptions
from validation.paired.course import Measures
from validation.paired.shared import SharedWorld, shared_world
from validation.report import __main__ as report

WORLD = NmmoOptions(players=4, npcs=4, horizon=24, entities_seen=4, market_seen=4, map_pool=18, num_maps=2)
GAMES = 6


def stage(module: object, config: str, *argv: object) -> None:
    cls = getattr(module, config)
    module.main(cli.parse(cls, [str(word) for word in argv], module.STAGE))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """maps/, policy/ (an untrained hybrid), rollouts/ (24 lives in 6 games), hidden_states/"""
    root = tmp_path_factory.mktemp("joins")
    env = NmmoEnv(WORLD, 1, root / "maps")
    torch.manual_seed(0)
    with artefacts.new_run(root / "policy", "train_nmmo", None, {}) as run:
        save_policy(PolicyAgent("hybrid", env.spec, 16), run.path)
    env.close()
    played(root, root / "rollouts", "--episodes", GAMES * WORLD.players)
    sizes = ("--ica_size", 3, "--ica_restarts", 2, "--nmf_size", 0, "--clusters", 3, "--surrogates", 0)
    where = ("--rollouts", root / "rollouts", "--agent", root / "policy", "--out", root / "hidden_states")
    stage(hidden_states, "HiddenStatesConfig", *where, *sizes, "--embedding", "pca", "--threads", 1)
    return root


def played(root: Path, out: Path, *argv: object) -> RolloutStore:
    where = ("--agent", root / "policy", "--maps", root / "maps", "--out", out, "--slots", 8, "--threads", 1)
    stage(record, "RecordConfig", *where, *argv)
    return RolloutStore(out)


# Recording


def test_a_recorded_life_is_whole_and_says_whose_it_was(house: Path) -> None:
    store, agent = RolloutStore(house / "rollouts"), load_agent(house / "policy")
    assert len(store) == GAMES * WORLD.players and store.manifest["facts"]["worlds"] == GAMES
    metas = [store.meta(e) for e in range(len(store))]
    assert sorted((m["world"], m["agent"]) for m in metas) == [(w, a) for w in range(GAMES) for a in range(1, 5)]
    for world in range(GAMES):  # a playing of a world has one map
        assert len({m["map"] for m in metas if m["world"] == world}) == 1
    assert {m["map"] for m in metas} <= {1, 2} and all(m["task"] for m in metas)
    for e, episode in enumerate(store):
        assert episode.logits is not None and episode.state is not None
        assert episode.action.shape == (episode.steps, len(agent.spec.action_parts)) and len(episode.h) == episode.steps
        assert episode.terminated != episode.truncated
        assert metas[e]["ended"] == ("died" if episode.terminated else "time was up")
        assert (episode.obs["Entity"][:, 0, 0] == metas[e]["agent"]).all()  # nothing of the dead
        assert episode.obs["Tick"][:, 0].tolist() == list(range(episode.steps))
        assert episode.truth["features"].shape == (episode.steps, len(FEATURES))
        with torch.no_grad():
            seen = agent.encode({k: torch.from_numpy(v) for k, v in episode.obs.items()})
            logits, value = heads_at(agent, torch.from_numpy(episode.h), seen)
        assert np.allclose(logits, episode.logits, atol=1e-4) and np.allclose(value, episode.value, atol=1e-4)
        mask = np.take_along_axis(episode.obs["Mask"], episode.action + np.cumsum([0, *agent.spec.parts[:-1]]), 1)
        assert (mask > 0).all()  # what was chosen was allowed


def test_the_state_of_a_life_goes_on_as_the_agent_would(house: Path) -> None:
    agent = load_agent(house / "policy")
    episode = max(RolloutStore(house / "rollouts"), key=lambda e: e.steps)
    assert episode.state is not None
    state = agent.initial(1)
    with torch.no_grad():
        for t in range(episode.steps):
            seen = agent.encode({k: torch.from_numpy(v[t : t + 1]) for k, v in episode.obs.items()})
            state = agent.advance(seen, state, torch.tensor([t == 0]))
            assert np.allclose(flatten(state)[0], episode.state[t], atol=1e-4)


def test_statistics_group_lives_by_world(house: Path) -> None:
    store = RolloutStore(house / "rollouts")
    world_E = np.array([store.meta(e)["world"] for e in range(len(store))])
    unit_E = units(store, store)
    assert len(np.unique(unit_E)) == GAMES
    assert all(len(np.unique(unit_E[world_E == w])) == 1 for w in range(GAMES))


def test_one_agent_a_world_is_altered_unless_all_are_asked_for(house: Path, tmp_path: Path) -> None:
    shift = ("--basis", house / "hidden_states", "--basis_kind", "pca", "--shift", "0=2", "--episodes", 16)
    one = played(house, tmp_path / "one", *shift)
    metas = [one.meta(e) for e in range(len(one))]
    altered = [(m["world"], m["agent"]) for m in metas if m["altered"]]
    assert sorted(w for w, _ in altered) == [0, 1, 2, 3]
    assert all(m["altered"] == list(range(one.steps[e])) for e, m in enumerate(metas) if m["altered"])
    whole = played(house, tmp_path / "all", *shift, "--who", "all")
    assert all(whole.meta(e)["altered"] for e in range(len(whole)))
    assert whole.manifest["facts"]["who"] == "all"


def test_an_intervention_of_some_rows_leaves_the_others_bit_by_bit(house: Path) -> None:
    basis = load_basis(house / "hidden_states", "pca")
    h_BH = torch.randn(4, basis.mean_H.shape[0])
    rows, mask = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    after = OnRows((Shift(basis, (0,), (1.0,)),), rows)(h_BH, torch.zeros(4, dtype=torch.int64), mask)
    assert (after != h_BH).any(1).tolist() == [True, False, False, False]


def test_held_out_maps_and_whole_worlds(house: Path) -> None:
    spec = load_agent(house / "policy").spec
    env = make(spec, 8, split="held_out", maps=house / "maps")
    assert set(env.reset(0).truth["map"].tolist()) <= set(range(3, 19)) and agents_a_world(spec) == 4
    env.close()
    with pytest.raises(UserError, match="not whole worlds of 4 agents"):
        make(spec, 6, maps=house / "maps")
    with pytest.raises(UserError, match="has no start_level; its maps are those of a split"):
        make(spec, 8, maps=house / "maps", start_level=3)


# Bases, behaviours, dynamics, patching


def test_bases_of_a_policy_have_its_heads_and_worlds_as_units(house: Path) -> None:
    result = Result.load(house / "hidden_states")
    agent = load_agent(house / "policy")
    assert result.notes["units_fitted"] == GAMES
    assert result.notes["fitted_of"].endswith(f" lives in {GAMES} worlds")
    assert result.arrays["head_weights"].shape == (agent.spec.n_actions + 1, 3)
    assert result.arrays["action"].shape[1] == len(agent.spec.action_parts)
    for name in ("planes.png", "map.png", "heads.png", "time_courses.png"):
        assert (house / "hidden_states" / name).stat().st_size > 0


def test_patching_takes_a_basis_of_the_same_recording(
    house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--states", 16, "--controls", 50, "--resamples", 99, "--pca_size", 0, "--threads", 1)
    basis = ("--basis", house / "hidden_states", "--direction_ids", 0, 2)
    stage(patching, "PatchingConfig", house / "rollouts", "--policy", house / "policy", *basis, "--out", tmp_path / "p",
          *small)  # fmt: skip
    result = Result.load(tmp_path / "p")
    assert result.notes["directions"] == ["ica:0", "ica:2"] and result.notes["identity"] == 0
    assert result.arrays["kl"].max() > 0 and result.notes["value_off"] < 1e-3
    assert result.notes["unit"] == "life"  # the worlds are too few, which is said
    assert re.search(r"warning: these lives share \d (map|maps|worlds): intervals say", capsys.readouterr().out)


def test_behaviours_of_lives_need_no_pictures(house: Path, tmp_path: Path) -> None:
    small = ("--clusters", 3, "--surrogates", 0, "--lags", 2, "--threads", 1)
    stage(behaviours, "BehavioursConfig", "--rollouts", house / "rollouts", "--out", tmp_path / "b", *small)
    result = Result.load(tmp_path / "b")
    assert not list((tmp_path / "b").glob("strip_*")) and (tmp_path / "b" / "graph.png").exists()
    assert result.scalars["stability"]["n"] == GAMES
    rows = result.tables["behaviours"]
    parts = load_agent(house / "policy").spec.action_parts
    assert all(row["actions"].partition(" ")[0] in parts for row in rows if row["n_steps"])
    # At most: every part uniform over its choices.
    most = sum(np.log2(n) for n in parts.values())
    assert all(0 < row["policy_entropy"] < most for row in result.tables["mdp"] if row["n_steps"])


def test_dynamics_of_a_policy_s_memory(house: Path, tmp_path: Path) -> None:
    small = ("--inputs", 1, "--starts", 6, "--iterations", 5, "--settle", 20, "--slow_speed", 10, "--burn_in", 2)
    where = ("--agent", house / "policy", "--rollouts", house / "rollouts", "--out", tmp_path / "d")
    stage(dynamics, "DynamicsConfig", *where, *small, "--lyapunov_steps", 16, "--threads", 1)
    result = Result.load(tmp_path / "d")
    assert np.isfinite(result.arrays["lyapunov_driven"]).all()
    assert result.scalars["lyapunov_driven"]["n"] == GAMES
    for row in result.tables["points"]:
        assert len(row["action"].split(", ")) == len(WORLD_PARTS)
    json.dumps(result.tables)


WORLD_PARTS = (
    "Attack.Style", "Attack.Target", "Buy.MarketItem", "Destroy.InventoryItem", "Give.InventoryItem", "Give.Target",
    "GiveGold.Price", "GiveGold.Target", "Move.Direction", "Sell.InventoryItem", "Sell.Price", "Use.InventoryItem",
)  # fmt: skip


# Interventions in the real world alone


def study(root: Path, out: Path, *argv: object) -> Result:
    where = ("--policy", root / "policy", "--basis", root / "hidden_states", "--maps", root / "maps", "--out", out)
    small = ("--starts", 6, "--horizon", 2, "--latest_start", 3, "--controls", 39, "--threads", 1)
    stage(interventions, "InterventionsConfig", *where, *small, *argv)
    return Result.load(out)


def test_a_claim_about_a_policy_is_tested_without_a_simulator(house: Path, tmp_path: Path) -> None:
    result = study(house, tmp_path / "i", "--hypotheses", "shift 0 by +3 on value", "shift 1 by +0 on value")
    assert result.scalars["twin_difference"]["value"] == 0  # a seed says everything
    assert result.scalars["zero_change_real"]["value"] == 0 and result.notes["warnings"] == []
    assert result.notes["gate"]["answer"] == "not asked" and "No simulator" in result.notes["gate"]["text"]
    (claim,) = result.notes["claims"]
    assert claim["quantity"] == "value@2" and claim["verdict"] in ("found", "no effect", "open")
    assert {claim[name] for name in ("size", "needed")} == {"not asked"}
    assert claim["parts"]["size"]["words"] == "there is no simulator that foretold a size"
    assert claim["n"] <= 6 and claim["random_n"] == 2 * 39
    assert claim["special_p"] >= 1 / 40
    quantities = {row["quantity"] for row in result.tables["effects"]}
    assert {"prob:melee@1..2", "prob:north@1..2", "value@2"} <= quantities
    assert all(row["world"] == "real" and "foretold" not in row for row in result.tables["effects"])
    assert np.abs(result.arrays["observed/value"][0]).min() > 0  # h was changed at every start


def test_all_agents_of_a_world_are_one_unit(house: Path) -> None:
    agent, basis = load_agent(house / "policy"), load_basis(house / "hidden_states", "pca")
    env = NmmoEnv(WORLD, 6, house / "maps")
    options = StudyOptions(starts=6, horizon=2, controls=39, latest_start=2)
    asked = asked_in(
        agent, lambda slots: env, basis, (), options, 0, torch.Generator(), "all", torch.device("cpu")
    )  # fmt: skip
    change = Hypothesis("shift", "pca", (0,), (3.0,))
    bench = Bench(basis, asked.starts, asked.world, None, asked.world)
    bench.prepare([change], (), np.random.default_rng(0))
    own = effects_in(bench, asked.world, [change], None, "")
    unaltered = {q: v[0] for q, v in asked.world.measure([None]).items()}
    nothing = {q: np.zeros(len(asked.starts)) for q in unaltered}
    assert len(asked.starts) > 6 and len(np.unique(asked.unit_N)) == 6
    rows = table_of(
        [change], unaltered, own, own, nothing, asked.unit_N, {}, (), options, np.random.default_rng(0)
    )  # fmt: skip
    assert rows and {row["n"] for row in rows} == {6}
    env.close()


def test_what_needs_a_simulator_is_refused_or_absent(house: Path, tmp_path: Path) -> None:
    for argv, said in (
        (("--directions", "largest", 2), "largest needs a simulator"),
        (("--hypotheses", "shift 0 by 1 sufficient for reward"), "needs a simulator; say 'on event:reward'"),
    ):
        with pytest.raises(UserError, match=said):
            study(house, tmp_path / "i", *argv)
        assert not (tmp_path / "i").exists()


def shared(house: Path, env: NmmoEnv, who: str = "one") -> SharedWorld:
    agent = load_agent(house / "policy")
    basis = load_basis(house / "hidden_states", "pca")
    measures = Measures({}, basis, (0,), (), agent.spec.parts)
    return shared_world(agent, env, measures, horizon=3, latest=4, seed=5, who=who, greedy=False,
                        device=torch.device("cpu"))  # fmt: skip


def test_pairs_part_only_from_the_start_on_and_memory_keeps_the_actions(house: Path) -> None:
    env = NmmoEnv(WORLD, 3, house / "maps")
    world = shared(house, env)
    basis = load_basis(house / "hidden_states", "pca")
    plain, twin = world.course(), world.course()
    for one, other in zip(plain, twin, strict=True):
        assert torch.equal(one, other)
    assert torch.allclose(plain.h_RTH[:, 0], world.starts.h_NH)  # type: ignore[index]
    change = (AtSteps(Shift(basis, (0,), (4.0,)), 0, 1),)
    moved, memory = world.course(change), world.course(change, "memory")
    assert moved.h_RTH is not None and memory.action_RTA is not None and plain.action_RTA is not None
    moves = basis.project(moved.h_RTH[:, 0]) - basis.project(world.starts.h_NH)
    assert torch.allclose(moves[:, 0], torch.full((len(moves),), 4.0), atol=1e-3)
    assert torch.equal(memory.action_RTA, plain.action_RTA) and torch.equal(memory.reward_RT, plain.reward_RT)
    assert len(set(world.world_N.tolist())) == len(world.starts)  # one agent a world
    many = shared(house, env, "all")
    assert len(many.starts) > len(world.starts) and set(many.world_N.tolist()) == set(world.world_N.tolist())
    env.close()


def test_words_for_what_a_policy_may_do(house: Path) -> None:
    spec = renewed(load_agent(house / "policy").spec)
    assert spec.action_words["north"] == ("Move.Direction north",)
    assert {"attack", "buy", "sell", "use", "destroy", "melee", "stay", "give_target"} <= spec.action_words.keys()
    assert all(set(names) < set(spec.action_names) for names in spec.action_words.values())
    assert not any("nothing" in name for names in spec.action_words.values() for name in names)


def test_coinrun_without_its_simulator(pipeline: Path, tmp_path: Path) -> None:
    sizes = ("--ica_size", 3, "--ica_restarts", 2, "--nmf_size", 0, "--clusters", 3, "--surrogates", 0)
    stage(hidden_states, "HiddenStatesConfig", "precompute", "--rollouts", pipeline / "rollouts",
          "--out", tmp_path / "hs", *sizes, "--embedding", "pca", "--threads", 1)  # fmt: skip
    where = ("--policy", pipeline / "agent", "--basis", tmp_path / "hs", "--out", tmp_path / "i", "--threads", 1)
    small = ("--starts", 8, "--horizon", 2, "--latest_start", 4, "--controls", 39, "--amounts", 0, 2)
    stage(interventions, "InterventionsConfig", *where, *small, "--directions", 0)
    result = Result.load(tmp_path / "i")
    assert result.scalars["twin_difference"]["value"] == 0 and result.notes["paired_by"] == "snapshot"
    assert result.scalars["zero_change_real"]["value"] == 0
    assert result.notes["claims"][0]["by_choice"] and result.notes["claims"][0]["needed"] == "not asked"
    assert {row["verdict"] for row in result.tables["effects"]} <= {"found", "no effect", "open"}
    # The page shows it, and says what was not asked.
    stage(report, "ReportConfig", "--runs", tmp_path, "--out", tmp_path / "page")
    page = (tmp_path / "page" / "report.html").read_text()
    assert "not asked" in page and "No simulator was given" in page
