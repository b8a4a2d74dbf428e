"""The Neural MMO stages at debug size, chained: train, replay, evaluate, tables, extract, JSON there and back."""

from __future__ import annotations

import csv
import importlib.util
import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents import evaluate, nmmo_evaluate, nmmo_train, train as train_script
from agents.learning_curves import read_curves
from agents.nmmo_play import RandomPolicy, load_policies, play, policies_in
from agents.policies import load_policy, log_probs
from agents.ppo import update
from analysis import activation_json, extract_activations, proc_eval_result
from analysis.activations import __main__ as activations
from analysis.lives import earlier_format
from core import artefacts, config as cli
from core.contracts import UserError
from core.episodes import RolloutStore
from core.ranks import Processes
from core.roll import act
from core.training import STATE
from envs.nmmo import FEATURES, NmmoEnv, options_of

CPU = torch.device("cpu")


def stage(module: object, config: str, *argv: object) -> None:
    cls = getattr(module, config)
    module.main(cli.parse(cls, [str(word) for word in argv], module.STAGE))  # type: ignore[attr-defined]


def train(out: Path, maps: Path, *argv: object) -> None:
    debug = ("--preset", "debug", "--threads", 1, "--maps", maps, "--out", out)
    stage(nmmo_train, "NmmoTrainConfig", *debug, *argv)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """maps/, policies/{hybrid,takeru}, activations/"""
    root = tmp_path_factory.mktemp("nmmo")
    for name in ("hybrid", "takeru"):
        train(root / "policies" / name, root / "maps", "-a", name)
    extract(root, root / "activations", "--parts", 2)
    return root


def extract(root: Path, out: Path, *argv: object) -> None:
    where = ("--policies", root / "policies", "--maps", root / "maps", "--threads", 1)
    stage(extract_activations, "ExtractConfig", "pve", "-p", "hybrid", "-o", out, *where, *argv)


def test_training_tells_its_true_recurrence(house: Path) -> None:
    for name, recurrence, remembers in (("hybrid", "LSTM, 1 layer, 16", True), ("takeru", "none", False)):
        manifest = artefacts.read_manifest(house / "policies" / name, nmmo_train.STAGE)
        assert manifest["facts"]["recurrence"] == recurrence and manifest["facts"]["remembers"] == remembers
        assert manifest["metrics"]["steps"]["value"] >= 512
        assert len(list((house / "policies" / name).glob("checkpoint_*.safetensors"))) == 2
        assert artefacts.verify(house / "policies" / name) == []


def test_a_killed_training_goes_on_and_another_architecture_is_refused(house: Path, tmp_path: Path) -> None:
    out = tmp_path / "p"
    train(out, house / "maps", "-a", "takeru", "--total_steps", 256)
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match="architecture was 'takeru'"):
        train(out, house / "maps", "-a", "hybrid", "--resume")
    train(out, house / "maps", "-a", "takeru", "--resume")
    steps = [int(line.split(",")[0]) for line in (out / "curve.csv").read_text().splitlines()[1:]]
    assert steps == sorted(set(steps)) and steps[0] <= 256 < steps[-1]
    weights = (house / "policies" / "hybrid" / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match="model.safetensors: content differs from its manifest"):
        load_policy(out)
    artefacts.Run(path=out, stage=nmmo_train.STAGE, config={}).finish()
    with pytest.raises(UserError, match="another architecture"):
        load_policy(out)


def test_lives_on_held_out_maps_are_measured_beside_training_and_change_nothing_of_it(
    house: Path, tmp_path: Path
) -> None:
    rows = {}
    for name, more in (("plain", ()), ("measured", ("--evaluate_every", 256, "--evaluate_episodes", 2))):
        train(tmp_path / name, house / "maps", "-a", "hybrid", *more)
        with open(tmp_path / name / "curve.csv", newline="") as file:
            rows[name] = list(csv.DictReader(file))
    measured = [row for row in rows["measured"] if row["held_out_length"]]
    assert len(measured) == 2 and {row["held_out_episodes"] for row in measured} == {"2"}
    assert all(0 < float(row["held_out_length"]) <= 24 for row in measured)  # the horizon
    beside = [{k: v for k, v in row.items() if not k.startswith(("held_out", "wall"))} for row in rows["measured"]]
    assert beside == [{k: v for k, v in row.items() if k != "wall_s"} for row in rows["plain"]]
    assert {c.split: c.of for c in read_curves(str(tmp_path / "measured"))} == {
        "train": "ticks a life", "held out": "ticks a life",
    }  # fmt: skip


def test_a_policy_stops_after_its_time_and_goes_on(
    house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, stop = tmp_path / "p", ("-a", "takeru", "--total_steps", 512, "--stop_after", "0.001s")
    train(out, house / "maps", *stop)
    assert "time is up: not finished, saved after" in capsys.readouterr().err
    with pytest.raises(UserError, match="half-written"):
        load_policy(out)
    state = out / STATE
    whole = state.read_bytes()
    state.write_bytes(whole[:-9] + bytes(9))
    with pytest.raises(UserError, match="state.pt: broken training state"):
        train(out, house / "maps", *stop, "--resume")
    state.write_bytes(whole)
    while not (out / "manifest.json").exists():
        train(out, house / "maps", *stop, "--resume")
    assert artefacts.verify(out) == [] and load_policy(out).name == "takeru"
    assert artefacts.read_manifest(out)["metrics"]["steps"]["value"] >= 512


def test_learning_rises_where_one_action_pays(house: Path) -> None:
    """The loss moves a policy towards what is rewarded: staying, here, where any other move costs."""
    config = cli.parse(
        nmmo_train.NmmoTrainConfig,
        [
            "--preset",
            "debug",
            "--learning_rate",
            "0.003",
            "--entropy_coef",
            "0",
            "--rollout_steps",
            "16",
            "--epochs",
            "3",
        ],
        nmmo_train.STAGE,
    )
    torch.manual_seed(0)
    env = NmmoEnv(replace(config.env, npcs=2), config.ppo.envs, house / "maps")
    agent = nmmo_train.PolicyAgent("hybrid", env.spec, 16)
    way = list(env.spec.action_parts).index("Move.Direction")
    chosen: list[np.ndarray] = []

    def stays(before: object, after: object) -> np.ndarray:
        return (chosen[-1] == 4).astype(np.float32)

    collector = nmmo_train.Collector(agent, env, stays, config, CPU)
    stepped = env.step

    def step(action: np.ndarray) -> object:
        chosen.append(action[:, way])
        return stepped(action)

    env.step = step  # type: ignore[method-assign,assignment]
    optimiser = torch.optim.Adam(agent.parameters(), lr=config.ppo.learning_rate)
    shares = []
    for _ in range(12):
        rollout = collector.collect()
        assert rollout.alive is not None
        shares.append(float((rollout.action[..., way] == 4)[rollout.alive].float().mean()))
        update(agent, optimiser, rollout, config.ppo, np.random.default_rng(0), 0.0, nmmo_train.loss_of)
    env.close()
    assert shares[0] < 0.5 and np.mean(shares[-3:]) > shares[0] + 0.25


def test_the_loss_starts_from_what_was_done(house: Path) -> None:
    """Replayed through the recurrence, the policy gives the log-probabilities and values of the rollout: ratio 1."""
    config = cli.parse(nmmo_train.NmmoTrainConfig, ["--preset", "debug"], nmmo_train.STAGE)
    env = NmmoEnv(config.env, 2, house / "maps")
    agent = load_policy(house / "policies" / "hybrid")
    collector = nmmo_train.Collector(agent, env, lambda before, after: after.reward, config, CPU)
    for _ in range(4):  # deaths and new worlds among them
        rollout = collector.collect()
        columns = torch.arange(env.spec.slots)
        advantage = torch.randn(rollout.reward.shape)
        _, parts = nmmo_train.loss_of(agent, rollout, advantage, columns, config.ppo, 0.0)
        assert abs(float(parts["approx_kl"])) < 1e-6 and float(parts["clipped_share"]) == 0
        assert rollout.alive is not None and not rollout.reward[~rollout.alive].any()
    rollout.alive[:] = False  # a minibatch of dead agents only has nothing to say, and says no NaN
    rollout.alive[3, 1] = True
    for few in (columns[:1], columns[:2]):
        loss, parts = nmmo_train.loss_of(agent.requires_grad_(True), rollout, advantage, few, config.ppo, 0.0)
        assert float(loss.detach()) == 0 and parts == {}
        loss.backward()  # type: ignore[no-untyped-call]
    env.close()


def test_the_shares_of_processes_average_to_the_whole_minibatch(house: Path) -> None:
    """Also where they were lived unequally long, and where all of one share were dead."""
    config = cli.parse(nmmo_train.NmmoTrainConfig, ["--preset", "debug"], nmmo_train.STAGE)
    env = NmmoEnv(config.env, 2, house / "maps")
    agent = load_policy(house / "policies" / "hybrid").requires_grad_(True)
    rollout = nmmo_train.Collector(agent, env, lambda before, after: after.reward, config, CPU).collect()
    env.close()
    assert rollout.alive is not None
    columns, advantage = torch.randperm(env.spec.slots), torch.randn(rollout.reward.shape)
    parameters = list(agent.parameters())

    def found(processes: Processes) -> tuple[torch.Tensor, torch.Tensor]:
        loss, parts = nmmo_train.loss_of(agent, rollout, advantage, columns, config.ppo, 0.01, processes)
        grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return torch.stack([loss.detach(), *parts.values()]), torch.cat([g.flatten() for g in grads])

    for lived in (3, 0):  # of the steps of the second share
        rollout.alive[lived:, columns[1::2]] = False
        whole, shares = found(Processes()), [found(Processes(rank, 2)) for rank in range(2)]
        assert whole[1].abs().max() > 1e-3
        for of_whole, *of_shares in zip(whole, *shares, strict=True):
            largest = max(float(of_whole.abs().max()), 1e-3)
            torch.testing.assert_close(torch.stack(of_shares).mean(0), of_whole, rtol=0, atol=1e-5 * largest)


def test_what_several_processes_cannot_do_is_refused(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="--syllabus draws its tasks in one process"):
        train(tmp_path / "a", house / "maps", "--syllabus")
    with pytest.raises(UserError, match="a minibatch has 1 agents, which 2 processes cannot share equally"):
        train(tmp_path / "a", house / "maps", "--minibatches", 16)
    with pytest.raises(UserError, match="--envs 3 cannot be shared equally"):
        train(tmp_path / "a", house / "maps", "--envs", 3)
    with pytest.raises(UserError, match="-m replay is the work of one process"):
        train(tmp_path / "a", house / "maps", "-m", "replay", "-p", house / "policies")
    assert not (tmp_path / "a").exists()


def test_replay_is_nmmo_s_file_and_our_page(house: Path, tmp_path: Path) -> None:
    where = ("-m", "replay", "-p", house / "policies", "--maps", house / "maps")
    stage(nmmo_train, "NmmoTrainConfig", *where, "--out", tmp_path / "r")
    packets = json.loads(lzma.decompress((tmp_path / "r" / "hybrid_takeru.replay.lzma").read_bytes()))["packets"]
    ticks = artefacts.read_manifest(tmp_path / "r")["metrics"]["ticks"]["value"]
    assert len(packets) == ticks + 1 and len(packets[0]["player"]) == 8
    page = (tmp_path / "r" / "replay.html").read_text()
    assert "hybrid, takeru" in page and "://" not in page
    assert not list((tmp_path / "r").glob("*.pkl"))
    with pytest.raises(UserError, match="needs -p"):
        stage(nmmo_train, "NmmoTrainConfig", "-m", "replay", "--out", tmp_path / "r2")


def test_evaluation_files_and_their_tables(house: Path, tmp_path: Path) -> None:
    small = ("--episodes", 4, "--worlds", 2, "--maps", house / "maps", "--threads", 1, "-r", 2)
    stage(nmmo_evaluate, "NmmoEvaluateConfig", house / "policies", "pve", *small, "--out", tmp_path / "eval_pve")
    stage(nmmo_evaluate, "NmmoEvaluateConfig", house / "policies", "pvp", *small, "--out", tmp_path / "eval_pvp")
    for mode, lives in (("pve", 4 * 8), ("pvp", None)):
        files = sorted((tmp_path / f"eval_{mode}").glob("result_*.json"))
        assert len(files) == 2 and files[0].read_bytes() != files[1].read_bytes()
        data = json.loads(files[0].read_text())
        assert list(data) == ["hybrid", "takeru", "random"]
        for of in data.values():
            assert lives is None or len(of["length"]) == lives
            assert {"curriculum/survive", "curriculum/eat"} & of.keys()
            assert sum(len(v) for k, v in of.items() if k.startswith("curriculum/")) == len(of["length"])
        if mode == "pvp":
            assert sum(len(of["length"]) for of in data.values()) == 4 * 8
            assert all(set(of["world"]) == {0, 1, 2, 3} for of in data.values())
    stage(proc_eval_result, "ProcEvalResultConfig", tmp_path, "--resamples", 50)
    for mode in ("pve", "pvp"):
        result = artefacts.Result.load(tmp_path / f"metrics_{mode}")
        assert {row["policy"] for row in result.tables["metrics"]} == {"hybrid", "takeru", "random"}
        assert ("ratings" in result.tables) == (mode == "pvp") and (
            tmp_path / f"metrics_{mode}" / "metrics.png"
        ).exists()
        for row in result.tables["metrics"]:
            assert row["low"] <= row["value"] <= row["high"] and row["worlds"] == 8


def test_an_extraction_holds_lives_and_what_the_decoder_read(house: Path) -> None:
    with RolloutStore(house / "activations") as store:
        agent = load_policy(house / "policies" / "hybrid")
        assert store.manifest["facts"]["policy"] == "hybrid" and len(store) == 2 * 4 * 8
        assert "logits" not in store.column_names
        for i in (0, 17, len(store) - 1):
            life = store.episode(i)
            assert (
                life.steps == len(life.h) and life.h.shape[1] == 16 and life.truth["features"].shape[1] == len(FEATURES)
            )
            tick = life.truth["features"][:, FEATURES.index("tick")]
            np.testing.assert_array_equal(tick, np.arange(life.steps))
            assert (life.obs["Entity"][:, 0, 0] == life.meta["agent"]).all()  # alive in every row
            # The activations are the decoder's input: run again from the start they are the same.
            state = agent.initial(1)
            for t in range(life.steps):
                obs = {k: torch.from_numpy(v[t : t + 1]) for k, v in life.obs.items()}
                acted = act(agent, obs, state, torch.tensor([t == 0]), torch.tensor([t]))
                state, logits, value = acted.state, acted.logits_BA, acted.value_B
                np.testing.assert_allclose(acted.h_BH[0].numpy(), life.h[t], atol=1e-5)
                logp = log_probs(logits, torch.from_numpy(life.action[t : t + 1]), agent.spec)
                assert (logp > -50).all() and abs(float(value) - life.value[t]) < 1e-4
        assert {p.name for p in (house / "activations").glob("map_*.npy")} == {
            f"map_{store.meta(i)['map']}.npy" for i in range(len(store))
        }


def test_an_interrupted_extraction_goes_on_to_the_same_end(house: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    extract(house, whole, "--parts", 2)
    extract(house, cut, "--parts", 1)
    (cut / "manifest.json").unlink()
    (cut / "part_0001_00000.h5").write_bytes(b"half of a shard")  # of the part that was cut off
    with pytest.raises(UserError, match="already holds data"):
        extract(house, cut, "--parts", 2)
    with pytest.raises(UserError, match="seed was 0 and is now 5"):
        extract(house, cut, "--parts", 2, "--resume", "--seed", 5)
    extract(house, cut, "--parts", 2, "--resume")
    with RolloutStore(whole) as a, RolloutStore(cut) as b:
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert x.meta == y.meta
            for name, column in x.columns().items():
                np.testing.assert_array_equal(column, y.columns()[name])
    assert artefacts.verify(cut) == []


def test_an_extraction_does_not_go_on_with_another_policy_or_fewer_parts(house: Path, tmp_path: Path) -> None:
    shutil.copytree(house / "policies" / "hybrid", tmp_path / "mine" / "hybrid")
    out = tmp_path / "out"
    extract(house, out, "--parts", 2, "--policies", tmp_path / "mine")
    with pytest.raises(UserError, match="--parts 1 would be fewer"):
        extract(house, out, "--parts", 1, "--policies", tmp_path / "mine", "--resume")
    train(tmp_path / "mine" / "hybrid", house / "maps", "-a", "hybrid", "--seed", 7, "--overwrite")
    with pytest.raises(UserError, match="not the one the extraction began with"):
        extract(house, out, "--parts", 3, "--policies", tmp_path / "mine", "--resume")
    progress = out / "progress.json"
    progress.write_text(progress.read_text().replace('"parts": 2', '"parts": 1'))
    with pytest.raises(UserError, match="progress.json differs from its seal"):
        extract(house, out, "--parts", 3, "--policies", tmp_path / "mine", "--resume")
    assert (out / artefacts.MANIFEST).exists(), "a refused --resume must leave the whole run whole"


def test_seeds_share_no_game(house: Path, tmp_path: Path) -> None:
    extract(house, tmp_path / "other", "--parts", 1, "--seed", 1)
    with RolloutStore(house / "activations") as a, RolloutStore(tmp_path / "other") as b:
        assert not {life.h.tobytes() for life in a} & {life.h.tobytes() for life in b}


def test_pvp_extraction_and_smoke_test_and_list(
    house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--policies", house / "policies", "--maps", house / "maps", "--threads", 1)
    stage(extract_activations, "ExtractConfig", "pvp", "-p", "takeru", "-o", tmp_path / "pvp", *where, "--parts", 1)
    with RolloutStore(tmp_path / "pvp") as store:
        assert {store.meta(i)["agent"] for i in range(len(store))} == {1, 3, 5, 7}
    extract(house, tmp_path / "smoke", "--smoke_test", "--points", "cell", "embedding")
    with RolloutStore(tmp_path / "smoke") as store:
        policy = load_policy(house / "policies" / "hybrid")
        life = store.episode(0)
        assert {name: x.shape[1] for name, x in life.points.items()} == {
            name: policy.points[name] for name in ("cell", "embedding")
        }
        obs = {k: torch.from_numpy(v) for k, v in life.obs.items()}
        with torch.no_grad():
            embedding = policy.read("embedding", policy.encode(obs), policy.initial(life.steps))
        np.testing.assert_allclose(life.points["embedding"], embedding.numpy(), atol=1e-4)
        assert np.abs(np.tanh(life.points["cell"])).max() >= np.abs(life.h).max()  # an LSTM's h = gate * tanh(cell)
    with pytest.raises(UserError, match="--points cel: the agent has no such vector .did you mean cell"):
        extract(house, tmp_path / "no", "--smoke_test", "--points", "cel")
    with RolloutStore(tmp_path / "smoke") as store:
        assert store.steps.max() <= 10 and len(store) == 8
    capsys.readouterr()
    extract(house, tmp_path / "none", "--list")
    assert "recurrence: LSTM, 1 layer, 16" in capsys.readouterr().out and not (tmp_path / "none").exists()


def test_json_there_and_back(house: Path, tmp_path: Path) -> None:
    file, again, lines = tmp_path / "activations.json", tmp_path / "again", tmp_path / "lines.json"
    stage(activation_json, "ActivationJsonConfig", "export", file, house / "activations")
    stage(activation_json, "ActivationJsonConfig", "import", file, again, "--policy", "hybrid")
    records = json.loads(file.read_text())
    lines.write_text("\n".join(json.dumps(r) for r in records[:200]))
    stage(activation_json, "ActivationJsonConfig", "import", lines, tmp_path / "lines")
    with RolloutStore(house / "activations") as a, RolloutStore(again) as b:
        assert int(a.steps.sum()) == int(b.steps.sum()) == len(records)
        key = lambda life: (life.meta["world"], life.meta["agent"], life.h[0].tobytes())  # noqa: E731
        assert {life.terminated for life in a} == {True, False}
        for x, y in zip(sorted(a, key=key), sorted(b, key=key), strict=True):
            np.testing.assert_array_equal(x.h, y.h)
            np.testing.assert_array_equal(x.action, y.action)
            assert (x.terminated, x.meta["part"]) == (y.terminated, y.meta["part"])
            for name in ("features", "position", "tile"):
                np.testing.assert_array_equal(x.truth[name], y.truth[name])
            for name in ("Tile", "Entity", "Inventory", "Market", "Tick"):
                np.testing.assert_array_equal(x.obs[name], y.obs[name])
    assert file.stat().st_size > 10 * sum(p.stat().st_size for p in (house / "activations").glob("*.h5"))


def test_foreign_json_is_imported_without_the_dead_and_with_features(house: Path, tmp_path: Path) -> None:
    """The earlier system's own files: no features, dead rows among the living, agents interleaved, own row anywhere."""
    life = RolloutStore(house / "activations").episode(3)
    rows = list(earlier_format.rows_as_json(life))
    for row in rows:
        del row["features"]
        row["observation"]["Entity"].reverse()
    dead = {**rows[-1], "observation": {**rows[-1]["observation"], "Entity": [[0] * 31] * len(life.obs["Entity"][0])}}
    other = [{**row, "agent_id": 99, "observation": {**row["observation"]}} for row in rows[:4]]
    for row in other:
        row["observation"]["Entity"] = [[99 if i == 0 and r[0] == life.meta["agent"] else v for i, v in enumerate(r)]
                                        for r in row["observation"]["Entity"]]  # fmt: skip
    mixed = [row for pair in zip(rows, [*other, *[dead] * (len(rows) - 4)], strict=True) for row in pair]
    (tmp_path / "a.json").write_text(json.dumps(mixed + rows))  # and the same agent's next life
    stage(activation_json, "ActivationJsonConfig", "import", tmp_path / "a.json", tmp_path / "in")
    with RolloutStore(tmp_path / "in") as store:
        assert sorted(store.steps) == sorted([len(rows), len(rows), 4])
        first = store.episode(int(np.flatnonzero(store.steps == len(rows))[0]))
        few = [
            FEATURES.index(n) for n in ("self_health", "self_food", "tick", "is_moving", "is_attacking", "in_combat")
        ]
        np.testing.assert_array_equal(first.truth["features"][:, few], life.truth["features"][:, few])


ROW = '[{"activation": [1.0], "agent_id": 1, "env_id": 0, "step": 0, "action": %s}]'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "holds no record"),
        (ROW % "[1, 2]", "actions of 2 parts"),
        ('[{"a": 1}]', "not the earlier system's layout"),
        ('[{"activation": [1.0], "agent_id": 1, ', "may be cut off"),
        ('[{"activation": [1.0], "agent_id": 1, "env_id": 0, "step": 0, "action": [0, 1, 2]}]', "say nothing"),
        (ROW % "3", "record 0 has no list of numbers as activation or as action"),
        ((ROW % "[0, 1, 2]").replace('"step": 0', '"s": 0'), "neither step nor CurrentTick"),
        ((ROW % "[0, 1, 2]").replace('"step"', '"observation": null, "step"'), "not tables by name"),
        ((ROW % "[0, 1, 2]").replace('"agent_id": 1', '"agent_id": "a"'), "no whole number"),
        ((ROW % "[0, 1, 2]").replace("1.0", "null"), "not a finite number"),
        ((ROW % "[0, 1, 2]").replace('"step"', '"features": {"tick": 0}, "step"'), "KeyError: 'n_visible_entities'"),
        ((ROW % "[0, 1, 2]").replace('"step"', '"observation": {"Entity": [[0, 0]]}, "step"'), "dead agent"),
        ((ROW % "[0, 1, 2]").replace('"step"', '"observation": {"Tile": [[40000]]}, "step"'), "16 bits"),
    ],
)
def test_bad_json_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=said):
        stage(activation_json, "ActivationJsonConfig", "import", tmp_path / "a.json", tmp_path / "in")
    assert not (tmp_path / "in").exists() or not (tmp_path / "in" / "manifest.json").exists()


def module(path: Path, reward: str, takes: str = "self") -> str:
    path.write_text(
        "from agents.zoo.takeru import Policy, Recurrent\n\n\nclass RewardWrapper:\n"
        f"    def __init__({takes}):\n        pass\n\n    def __call__(self, b, a):\n        return {reward}\n"
    )
    return str(path)


def test_a_training_does_not_go_on_with_a_changed_module(house: Path, tmp_path: Path) -> None:
    mine = module(tmp_path / "mine.py", "a.reward")
    train(tmp_path / "t", house / "maps", "-a", mine, "--total_steps", 256)
    module(tmp_path / "mine.py", "5 + a.reward")
    with pytest.raises(UserError, match="was changed since"):
        train(tmp_path / "t", house / "maps", "-a", mine, "--resume")
    assert artefacts.verify(tmp_path / "t") == []


def test_users_mistakes(house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = house / "maps"
    exits = tmp_path / "exits.py"
    exits.write_text("import sys; sys.exit(3)")
    for words, said in (
        (["-a", "takero"], "did you mean takeru"),
        (["-a", str(tmp_path / "none.py")], "cannot read the module"),
        (["-a", "takeru", "--num_maps", "18"], "held-out maps"),
        (["-a", "takeru", "--minibatches", "7"], "does not divide"),
        (["-a", "takeru", "--syllabus"], "syllabus-rl"),
        (["-a", "takeru", "-p", "x"], "belongs to -m replay"),
        (["-a", str(exits)], "SystemExit"),
        (["-a", module(tmp_path / "a.py", "a.reward[:, None]")], r"reward has shape \(\d+, 1\)"),
        (["-a", module(tmp_path / "b.py", "a.truth['nonsense']")], "KeyError: 'nonsense'"),
        (["-a", module(tmp_path / "c.py", "a.reward", "self, k")], r"RewardWrapper\(\) does not work"),
        *([] if importlib.util.find_spec("wandb") else [(["-a", "takeru", "--track"], "pip install wandb")]),
    ):
        with pytest.raises(UserError, match=said):
            train(tmp_path / "t", maps, *words)
        assert not (tmp_path / "t").exists()
    with pytest.raises(UserError, match="did you mean hybrid"):
        extract(house, tmp_path / "e", "-p", "hybird")
    with pytest.raises(UserError, match="no such directory"):
        stage(nmmo_evaluate, "NmmoEvaluateConfig", tmp_path / "nowhere", "pve")
    with pytest.raises(UserError, match="holds no evaluation"):
        stage(proc_eval_result, "ProcEvalResultConfig", house / "policies")
    with pytest.raises(SystemExit) as end:
        train_script.choose(["nmmo", "-a", "takero", "--debug"])
    assert end.value.code == 2 and "did you mean takeru" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        evaluate.choose([str(tmp_path), "pve"])
    assert end.value.code == 2 and "holds no policy" in capsys.readouterr().err


def test_a_policy_of_the_baseline_s_name_is_refused(house: Path, tmp_path: Path) -> None:
    shutil.copytree(house / "policies" / "takeru", tmp_path / "random")
    for path in (tmp_path, tmp_path / "random"):
        with pytest.raises(UserError, match="this name is the baseline's"):
            policies_in(path)


def test_random_is_uniform_among_what_is_legal(house: Path) -> None:
    spec = load_policies(policies_in(house / "policies" / "takeru"), CPU)["takeru"].spec
    env = NmmoEnv(options_of(spec), 1, house / "maps")
    moves = np.zeros(5)
    for number, tick in enumerate(play([RandomPolicy(spec)], np.zeros(8, np.int64), env, seed=0, device=CPU)):
        mask = tick.step.obs["Mask"]
        at = np.cumsum([0, *spec.action_parts.values()])[:-1]
        legal = np.take_along_axis(mask, at + tick.action_BP, 1)[tick.step.alive]
        assert legal.all()
        way = list(spec.action_parts).index("Move.Direction")
        free = mask[:, at[way] : at[way] + 5].all(1) & tick.step.alive
        moves += np.bincount(tick.action_BP[free, way], minlength=5)
        if number == 60:
            break
    env.close()
    assert moves.sum() > 100 and np.abs(moves / moves.sum() - 0.2).max() < 0.12


def test_flags_of_the_earlier_system_mean_what_they_meant() -> None:
    trained = cli.parse(nmmo_train.NmmoTrainConfig, ["-a", "hybrid", "--no-track", "--syllabus"], nmmo_train.STAGE)
    assert (trained.architecture, trained.track, trained.syllabus) == ("hybrid", False, True)
    extract_argv = ["pve", "-p", "takeru", "-o", "there", "--smoke-test"]
    extracted = cli.parse(extract_activations.ExtractConfig, extract_argv, extract_activations.STAGE)
    assert (extracted.policy, extracted.out, extracted.smoke_test) == ("takeru", Path("there"), True)
    words = "there --cluster-before-umap --pre-cluster-dims 20 --feature-scatter --umap-pairs --umap-pairs-dims 5"
    more = "--dendrogram-explorer --metric-only --hdbscan-min-cluster 20 --umap-neighbors 10 --subsample 5"
    config = cli.parse(activations.ActivationsConfig, f"{words} {more}".split(), activations.STAGE)
    assert config.cluster_before_umap and config.metric_only and config.dendrogram_explorer
    assert (config.pre_cluster_dims, config.umap_pairs_dims, config.hdbscan_min_cluster) == (20, 5, 20)
    default = activations.ActivationsConfig()
    assert (default.subsample, default.umap_neighbors, default.hdbscan_min_cluster) == (10, 15, 15)
    assert (default.pre_cluster_dims, default.umap_pairs_dims, default.metric_only) == (30, 10, False)
    for words, worlds in (("pve", 32), ("pvp", 200), ("pvp -n 8", 8)):
        argv = ["policies", *words.split()]
        assert cli.parse(nmmo_evaluate.NmmoEvaluateConfig, argv, nmmo_evaluate.STAGE).worlds_played == worlds
