"""Simulated samples: explicit noise, forced actions, another agent, and endings that are endings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agents.record import keep_unaltered
from agents.recurrent import AgentConfig, RecurrentAgent, load_agent, save_agent
from core import artefacts, config as cli
from core.contracts import EnvSpec, Field, UserError
from core.directions import fingerprint
from core.episodes import RolloutStore, StoreWriter
from core.roll import Trajectory
from envs.planted import planted_simulator, record_planted
from envs.procgen import ACTION_NAMES
from generative import record_samples
from generative.record_samples import informed_latents, noise_of, parse_actions, random_latents, to_episodes
from generative.rssm import ModelConfig
from generative.simulator import load_simulator, save_simulator, simulator_of

SPEC = EnvSpec(
    env_id="procgen/bigfish",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=ACTION_NAMES,
    slots=1,
)
STEPS = 6


def make_agent(seed: int, hidden: int = 6, recurrence: str = "gru") -> RecurrentAgent:
    torch.manual_seed(seed)
    config = AgentConfig(encoder="strided", embedding_size=8, hidden_size=hidden, recurrence=recurrence)  # type: ignore[arg-type]
    agent = RecurrentAgent(config, SPEC)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    return agent.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained simulator whose every step ends with probability about 0.2, and an agent to swap in."""
    root = tmp_path_factory.mktemp("runs")
    agent = make_agent(0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = simulator_of(ModelConfig(head_layers=1, **sizes), agent)
    torch.nn.init.normal_(simulator.world.decoder.first.weight, std=1.0)
    torch.nn.init.constant_(simulator.world.terminal_head[-1].bias, -1.4)
    with artefacts.new_run(root / "simulator", "train_gen_model", {}) as run:
        save_simulator(simulator, run.path)
    with artefacts.new_run(root / "guest", "train", {}) as run:
        save_agent(make_agent(5, hidden=9, recurrence="none"), run.path)
    return root


def record(runs: Path, out: Path, *more: object) -> RolloutStore:
    words = ["--simulator", runs / "simulator", "--out", out, "--threads", 1, "--samples", 10, "--steps", STEPS, *more]
    cli.run(record_samples.RecordSamplesConfig, record_samples.main, record_samples.STAGE, [str(w) for w in words])
    return RolloutStore(out)


def real_rollouts(path: Path, spec: EnvSpec = SPEC) -> Path:
    """A store of episodes that look like the simulator's world (noise for frames), of 4, 6, 8 ... transitions."""
    rng = np.random.default_rng(0)
    with artefacts.new_run(path, "record", {}) as run, StoreWriter(run.path) as writer:
        artefacts.write_json(run.path / "spec.json", spec.to_json())
        from core.episodes import Episode

        for steps in (4, 6, 8, 10, 12):
            writer.add(
                Episode(
                    obs={"frames": rng.integers(0, 256, (steps, 64, 64, 3), dtype=np.uint8)},
                    h=np.zeros((steps, 6), np.float32),
                    value=np.zeros(steps, np.float32),
                    action=rng.integers(0, 15, steps),
                    logits=np.zeros((steps, 15), np.float32),
                    reward=np.zeros(steps, np.float32),
                    terminated=True,
                    truncated=False,
                )
            )
        run.facts = {"source": "real", "agent": "x"}
    return path


# Noise


def test_a_sample_s_noise_is_its_own() -> None:
    simulator = planted_simulator()
    together = noise_of(simulator, 3, range(5), 2, torch.device("cpu"))
    alone = noise_of(simulator, 3, [4], 2, torch.device("cpu"))
    assert len(together) == 3
    for a, b in zip(together, alone, strict=True):
        assert torch.equal(a.world[4:], b.world) and torch.equal(a.action_BA[4:], b.action_BA)
        assert torch.equal(a.ending_B[4:], b.ending_B)
    draws = torch.cat([draw.world for draw in together]).flatten()
    assert len(draws.unique()) == len(draws)
    other = noise_of(simulator, 4, [4], 2, torch.device("cpu"))
    assert not torch.equal(other[0].world, alone[0].world)


def test_stochastic_samples_can_be_made_again(runs: Path, tmp_path: Path) -> None:
    """The same whatever the batch; other for another seed; and from what is on disk, transition by transition."""
    a = record(runs, tmp_path / "a", "--stochastic", "--batch", 10)
    b = record(runs, tmp_path / "b", "--stochastic", "--batch", 3)
    c = record(runs, tmp_path / "c", "--stochastic", "--seed", 1)
    modal = record(runs, tmp_path / "modal")
    assert [m.manifest["facts"]["stochastic"] for m in (a, modal)] == [True, False]
    assert a.steps.tolist() == b.steps.tolist() != c.steps.tolist()
    simulator = load_simulator(runs / "simulator")
    for i in range(len(a)):
        mine, twin = a.episode(i), b.episode(i)
        assert np.array_equal(mine.action, twin.action)
        np.testing.assert_allclose(mine.h, twin.h, atol=1e-5)
        seed, sample = a.meta(i)["noise"]
        noise = noise_of(simulator, seed, [sample], STEPS, torch.device("cpu"))
        again = simulator.rollout(torch.from_numpy(a.latents([i])), STEPS, noise=noise)
        rows = len(mine.h)
        assert np.array_equal(again.action[0, : mine.steps], mine.action)
        np.testing.assert_allclose(again.h[0, :rows], mine.h, atol=1e-5)
        assert again.alive[0].sum() == rows
    assert any(not np.array_equal(a.episode(i).action, modal.episode(i).action[: a.steps[i]]) for i in range(10))
    assert "noise" not in modal.meta(0)


def test_a_simulator_keeps_the_unit_of_its_rewards(runs: Path, tmp_path: Path) -> None:
    simulator = load_simulator(runs / "simulator")
    assert simulator.world.reward_unit == 1 and "reward_unit" not in (runs / "simulator/simulator.json").read_text()
    simulator.world.reward_unit = 2.5e6
    with artefacts.new_run(tmp_path / "s", "train_gen_model", {}) as run:
        save_simulator(simulator, run.path)
    assert load_simulator(tmp_path / "s").world.reward_unit == 2.5e6


@pytest.mark.parametrize(
    ("part", "said"), [("decoder", "frames"), ("reward_head", "rewards"), ("terminal_head", "chances of ending")]
)
def test_a_broken_simulator_records_nothing(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, said: str
) -> None:
    """An ending that is no number would be recorded as an ending, a frame that is none as a black one."""
    simulator = load_simulator(runs / "simulator")
    for name, tensor in simulator.world.named_parameters():
        if name.startswith(part):
            tensor.fill_(torch.nan)
    with artefacts.new_run(tmp_path / "broken", "train_gen_model", {}) as run:
        save_simulator(simulator, run.path)
    with pytest.raises(SystemExit) as ended:
        record(runs, tmp_path / "samples", "--simulator", tmp_path / "broken", "--overwrite")
    assert ended.value.code == 2 and f"NaN or infinite values ({said})" in capsys.readouterr().err
    assert not (tmp_path / "samples").exists()


# Endings


def test_an_ended_sample_is_cut_where_it_ended() -> None:
    """Not resumed: rows after the ending are nowhere in the episode, the fatal transition is."""
    t = torch.arange(5.0)
    alive = torch.tensor([[True] * 5, [True, True, True, False, False], [True, False, False, False, False]])
    trajectory = Trajectory(
        obs={"frames": torch.zeros(3, 5, 64, 64, 3)},
        d=t.expand(3, 5)[..., None],
        h=t.expand(3, 5)[..., None],
        logits=torch.zeros(3, 5, 2),
        value=t.expand(3, 5),
        action=t.long().expand(3, 5),
        reward=10 + t[:4].expand(3, 4),
        terminal=torch.zeros(3, 4),
        paid=torch.ones(3, 4, 2),
        alive=alive,
        state=t.expand(3, 5)[..., None],
        world=t.expand(3, 5)[..., None],
    )
    goes_on, third, first = to_episodes(trajectory, torch.zeros(3, 2), SPEC, [{}, {}, {}])
    assert goes_on.steps == 4 and goes_on.truncated and not goes_on.terminated and goes_on.final_known
    assert third.terminated and not third.truncated and third.steps == 3 and not third.final_known
    assert third.value.tolist() == [0, 1, 2] and third.action.tolist() == [0, 1, 2]
    assert third.reward.tolist() == [10, 11, 12]  # the transition from step 2 is the one that ended it
    assert first.steps == 1 and first.h.shape == (1, 1) and first.reward.tolist() == [10]


def test_samples_are_as_long_as_they_lived(runs: Path, tmp_path: Path) -> None:
    store = record(runs, tmp_path / "s", "--stochastic", "--samples", 60)
    assert 0 < store.terminated.mean() < 1 and (store.terminated ^ store.truncated).all()
    assert (store.steps[store.truncated] == STEPS).all() and (store.rows[store.truncated] == STEPS + 1).all()
    assert (store.rows[store.terminated] == store.steps[store.terminated]).all()
    # Every transition of every sample was survived but the last of those that ended.
    p = store.terminated.sum() / store.steps.sum()
    assert abs(p - 0.2) < 4 * np.sqrt(0.16 / store.steps.sum())
    columns, index = store.pooled("h")
    assert len(columns["h"]) == store.steps.sum() and (index[:, 1] < store.steps[index[:, 0]]).all()
    facts = artefacts.read_manifest(tmp_path / "s")["metrics"]["ended_share"]
    assert facts["value"] == pytest.approx(store.terminated.mean())


# Starts


def test_informed_latents_are_the_windows_own(runs: Path, tmp_path: Path) -> None:
    simulator = load_simulator(runs / "simulator")
    with RolloutStore(real_rollouts(tmp_path / "real")) as store:
        starts = np.array([[0, 0], [3, 5], [4, 2]])
        cpu = torch.device("cpu")
        z = informed_latents(simulator.world, store, starts, cpu, batch=2)
        frames = np.stack([store.episode(e).obs["frames"][t : t + 3] for e, t in starts])
        mean, log_std = simulator.world.infer({"frames": torch.from_numpy(frames)})
        torch.testing.assert_close(z, mean)
        drawn = torch.stack(
            [
                informed_latents(simulator.world, store, starts, cpu, torch.Generator().manual_seed(i))
                for i in range(200)
            ]
        )
    deviation = (drawn - mean) / log_std.exp()
    assert deviation.mean().abs() < 0.1 and abs(deviation.std().item() - 1) < 0.1
    with RolloutStore(tmp_path / "real") as store:
        made = record(runs, tmp_path / "s", "--rollouts", tmp_path / "real")
        for i in range(3):
            e, t = made.meta(i)["start"]
            z = informed_latents(simulator.world, store, np.array([[e, t]]), cpu)[0]
            np.testing.assert_allclose(made.latents([i])[0], z, atol=1e-5)


def test_a_hypersphere_s_latents_have_no_spread() -> None:
    agent = make_agent(0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    sphere = simulator_of(ModelConfig(head_layers=1, latent="hypersphere", **sizes), agent).world
    with torch.no_grad():
        mean, log_std = sphere.infer({"frames": torch.rand(2, 3, 64, 64, 3)})
        assert (log_std.exp() < 0.01).all()
        assert torch.linalg.norm(random_latents(sphere, 4, torch.Generator().manual_seed(0)), dim=-1).tolist() == (
            pytest.approx([1.0] * 4)
        )
    assert torch.linalg.norm(mean, dim=-1).tolist() == pytest.approx([1.0, 1.0])


def test_planted_latents_come_from_the_first_observation(tmp_path: Path) -> None:
    """The same function on another kind of world."""
    simulator = planted_simulator()
    episodes = record_planted(episodes=4, steps=8, seed=1)
    with artefacts.new_run(tmp_path / "p", "record", {}) as run, StoreWriter(run.path) as writer:
        artefacts.write_json(run.path / "spec.json", simulator.world.spec.to_json())
        for episode in episodes:
            writer.add(episode)
        run.facts = {"source": "real"}
    store = record_samples.open_rollouts(tmp_path / "p", simulator)
    z = informed_latents(simulator.world, store, np.array([[0, 0], [2, 1]]), torch.device("cpu"))
    np.testing.assert_allclose(z[0, :8], episodes[0].truth["stimulus"][0], atol=1e-5)
    np.testing.assert_allclose(z[1, :8], episodes[2].truth["stimulus"][1], atol=1e-5)


# Forced actions


def test_actions_by_name_or_number() -> None:
    assert parse_actions(["right", "3", "up"], SPEC, 5).tolist() == [7, 3, 5, 5, 5, 5]
    with pytest.raises(UserError, match=r"no action 'rihgt' \(did you mean right\?\)"):
        parse_actions(["rihgt"], SPEC, 5)
    with pytest.raises(UserError, match="no action '15'"):
        parse_actions(["15"], SPEC, 5)
    with pytest.raises(UserError, match="names 3 actions for --steps 2"):
        parse_actions(["up", "up", "up"], SPEC, 2)


def test_forced_actions_are_done_and_said(runs: Path, tmp_path: Path) -> None:
    forced = record(runs, tmp_path / "forced", "--actions", "right", "up")
    free = record(runs, tmp_path / "free")
    for i in range(10):
        e, f = forced.episode(i), free.episode(i)
        assert e.action.tolist() == ([7] + [5] * 5)[: e.steps]
        np.testing.assert_allclose(e.logits[0], f.logits[0], atol=1e-5)  # what the agent would have done is kept
        np.testing.assert_allclose(e.world["d"][0], f.world["d"][0], atol=1e-5)
    assert any(not np.allclose(forced.episode(i).world["d"], free.episode(i).world["d"]) for i in range(10))
    (said,) = forced.manifest["facts"]["interventions"]
    assert said == {"kind": "ForcedActions", "actions": ["right", "up"]}
    assert free.manifest["facts"]["interventions"] == []


def test_the_recorded_actions_of_each_start(runs: Path, tmp_path: Path) -> None:
    real = real_rollouts(tmp_path / "real")
    made = record(runs, tmp_path / "s", "--rollouts", real, "--actions", "recorded", "--samples", 20)
    with RolloutStore(real) as store:
        begun = set()
        for i in range(20):
            e, t = made.meta(i)["start"]
            episode = made.episode(i)
            assert np.array_equal(episode.action, store.episode(e).action[t + 2 :][: episode.steps])
            assert t + 2 + STEPS <= store.steps[e]
            begun.add(e)
    assert begun == {2, 3, 4}  # the others are too short


# Another agent


def test_another_agent_dreams_in_the_same_world(runs: Path, tmp_path: Path) -> None:
    guest = record(runs, tmp_path / "guest", "--agent", runs / "guest")
    own = record(runs, tmp_path / "own")
    simulator = load_simulator(runs / "simulator")
    agent = load_agent(runs / "guest")
    assert guest.manifest["facts"]["agent"] == fingerprint(agent) != own.manifest["facts"]["agent"]
    assert guest.manifest["facts"]["simulator"] != own.manifest["facts"]["simulator"] == fingerprint(simulator)
    assert "agent" in guest.manifest["inputs"]
    for i in range(10):
        a, b = guest.episode(i), own.episode(i)
        assert a.h.shape[1] == 9
        np.testing.assert_allclose(a.world["d"][0], b.world["d"][0], atol=1e-5)  # nobody has acted yet
        e = agent.encode({"frames": torch.from_numpy(a.obs["frames"])})
        logits, _ = agent.heads(e, agent.advance(e, torch.zeros(len(e), 9), torch.zeros(len(e), dtype=torch.bool)))
        np.testing.assert_allclose(logits[: a.steps], a.logits, atol=0.1)  # frames on disk are rounded to bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--actions", "jump"], "no action 'jump'"),
        (["--actions", "recorded"], "needs --rollouts"),
        (["--actions", "recorded", "--rollouts", "REAL", "--steps", "50"], "no episode has 52 recorded actions"),
        (["--rollouts", "OTHER"], "is of procgen/maze, the simulator of procgen/bigfish"),
        (["--rollouts", "FREE"], "holds no real rollouts to start from"),
        (["--agent", "MAZE"], "does not fit this world"),
        (["--agent", "REAL"], "holds no agent"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_mistakes_leave_nothing(
    runs: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    places = {name: tmp_path / name.lower() for name in ("REAL", "OTHER", "FREE", "MAZE")}
    if "REAL" in words:
        real_rollouts(places["REAL"])
    if "OTHER" in words:
        real_rollouts(places["OTHER"], replace(SPEC, env_id="procgen/maze"))
    if "FREE" in words:
        record(runs, places["FREE"], "--samples", 2)
    if "MAZE" in words:
        with artefacts.new_run(places["MAZE"], "train", {}) as run:
            save_agent(RecurrentAgent(AgentConfig(encoder="strided"), replace(SPEC, env_id="procgen/maze")), run.path)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        record(runs, tmp_path / "out", *[str(places.get(w, w)) for w in words])
    assert ended.value.code == 2 and not (tmp_path / "out").exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_forced_samples_never_replace_free_ones(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(runs, tmp_path / "s")
    with pytest.raises(SystemExit):
        record(runs, tmp_path / "s", "--actions", "up", "--overwrite")
    assert "holds unaltered data" in capsys.readouterr().err
    assert artefacts.verify(tmp_path / "s") == []


def test_an_unaltered_recording_set_aside_by_one_cut_off_is_kept_too(tmp_path: Path) -> None:
    out = tmp_path / "samples"
    with artefacts.new_run(out, record_samples.STAGE, {}) as run:
        run.facts = {"interventions": []}
    artefacts.begin_run(out, record_samples.STAGE, {}, overwrite=True)  # and then the machine stops
    with pytest.raises(UserError, match=r"\.samples\.replaced holds unaltered data"):
        keep_unaltered(out, altered=True)
    keep_unaltered(out, altered=False)
