"""Probes and patching from the command line, on an extraction of a policy whose wiring is known."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import adopt, record
from agents.policies import PolicyAgent, load_policy, sample, save_policy
from analysis.patching import __main__ as patching, table
from analysis.probes import __main__ as probes
from analysis.shared.directions import fit_pca
from core import artefacts, config as cli
from core.artefacts import Result, write_json
from core.contracts import EnvSpec, Field
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore, StoreWriter
from envs.planted import PlantedAgent, PlantedOptions
from envs.planted_truth import truth

SIZE, FEATURES = 16, ["tick", "in_combat", "n_visible_players", "self_gold"]
PARTS = {"Move.Direction": 5, "Attack.Style": 4, "Buy.MarketItem": 3}
SPEC = EnvSpec(
    env_id="nmmo/planted", slots=4, action_parts=PARTS, action_names=tuple(f"a{i}" for i in range(12)),
    obs={"Entity": Field(shape=(2, SIZE), dtype="int16"), "Mask": Field(shape=(12,), dtype="int8")},
)  # fmt: skip
MODULE = '''
"""h is the own row of the entities, scaled; Move reads its number 0 (a clock), Attack its number 1."""
from typing import NamedTuple
import torch
from torch import nn

class Seen(NamedTuple):
    mask: torch.Tensor

class Policy(nn.Module):
    def __init__(self, spec, size=256):
        super().__init__()
        self.embedding_size, self.size = size, size
        weight = torch.zeros(size, spec.n_actions)
        weight[0, :5] = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0])
        weight[1, 5:9] = torch.tensor([1.0, -1.0, 0.5, -0.5])
        self.weight = nn.Parameter(weight)

    def encode(self, obs):
        return obs["Entity"][:, 0].float() / 100, Seen(obs["Mask"] > 0)

    def decode(self, h, seen):
        return (h @ self.weight).masked_fill(~seen.mask, -1e9), h[:, 2]

Recurrent = None

class RewardWrapper:
    def __call__(self, before, after):
        return after.reward
'''


def run(module: Any, *argv: object) -> Result:
    """The stage as its command line would run it; its result."""
    config = cli.parse(getattr(module, f"{module.STAGE.capitalize()}Config"), [str(a) for a in argv], module.STAGE)
    module.main(config)
    assert artefacts.verify(config.out) == []
    return Result.load(config.out)


def fails(capsys: pytest.CaptureFixture[str], module: Any, *argv: object) -> str:
    """A mistake: exit code 2 and one line, which is returned."""
    cls = getattr(module, f"{module.STAGE.capitalize()}Config")
    with pytest.raises(SystemExit) as ended:
        cli.run(cls, module.main, module.STAGE, [str(a) for a in argv])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


def extract(path: Path, agent: PolicyAgent, *, late: int = 0, known: bool = True) -> Path:
    """An extraction as analysis.extract_activations writes it.  late: by how many steps h lags behind the rest."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    with artefacts.new_run(path, "extract_activations", {}) as opened:
        write_json(opened.path / "spec.json", SPEC.to_json())
        opened.facts = {"policy": "planted", "agent": fingerprint(agent), "features": FEATURES}
        with StoreWriter(opened.path) as writer:
            for life in range(36):
                n = int(rng.integers(25, 40))
                t = np.arange(n)
                fight, place = (rng.random(n) < 0.3).astype(int), np.cumsum(rng.integers(-1, 2, (n, 2)), 0) + 30
                entity = np.zeros((n, 2, SIZE), np.int16)
                entity[:, 0] = 100 * rng.standard_normal((n, SIZE))
                entity[:, 0, :4] = np.stack([10 * t, 200 * fight - 60, 10 * place[:, 0], 10 * place[:, 1]], 1)
                mask = np.ones((n, 12), np.int8)
                mask[:, 9:11] = 0
                obs = {"Entity": entity, "Mask": mask}
                with torch.no_grad():
                    seen = agent.encode({k: torch.from_numpy(v) for k, v in obs.items()})
                    state = agent.advance(seen, agent.initial(n), torch.zeros(n, dtype=torch.bool))
                    h, (logits, value) = agent.read("h", seen, state), agent.heads(seen, state)
                players = 3 * np.exp(-t / 10) + 0.3 * rng.standard_normal(n)  # falls with time; in no observation
                truth = {
                    "features": np.stack([t, fight, players, np.zeros(n)], 1).astype(np.float32),
                    "position": place.astype(np.int16),
                    "world": np.full(n, life % 3),
                }
                writer.add(
                    Episode(
                        obs=obs if known else {}, h=np.roll(h.numpy(), late, 0), value=value.numpy(),
                        action=sample(logits, SPEC, generator).numpy(), reward=np.zeros(n, np.float32),
                        terminated=True, truncated=False, truth=truth,
                        meta={"seed": 0, "world": life % 3, "map": life // 3, "agent": life, "first_tick": 0},
                    )
                )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """policy/, another/ with other weights, and extractions of the policy."""
    root = tmp_path_factory.mktemp("probes")
    (root / "planted.py").write_text(MODULE)
    agent = PolicyAgent(root / "planted.py", SPEC, SIZE)
    for name in ("policy", "another"):
        with artefacts.new_run(root / name, "train_policy", {}) as opened:
            save_policy(agent, opened.path)
        with torch.no_grad():
            agent.policy.weight += 1
    agent = load_policy(root / "policy")
    extract(root / "extraction", agent)
    extract(root / "late", agent, late=1)
    extract(root / "imported", agent, known=False)
    run(
        probes, root / "extraction", "--out", root / "probes", "--shuffles", 39, "--resamples", 99, "--epochs", 3,
        "--observation", "obs/Entity:0", "--threads", 1,
    )  # fmt: skip
    return root


def test_probes_read_what_is_there_and_name_what_is_not(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = Result.load(world / "probes")
    said = {row["target"]: row for row in result.tables["targets"]}
    assert list(said) == [*FEATURES, "row", "col"]  # which world it is is no quantity
    assert result.notes["unit"] == "map" and said["row"]["n"] == 12
    assert said["self_gold"]["verdict"] == "constant" and said["self_gold"]["linear"] is None
    assert said["row"]["verdict"] == "read beyond what is given" and said["row"]["observation"] > 0.99
    assert said["tick"]["verdict"] == "read; it is time itself"
    assert said["n_visible_players"]["verdict"] == "not shown to be more than time alone predicts"
    assert said["n_visible_players"]["linear"] > 0.5 and abs(said["n_visible_players"]["partial"]) < 0.05
    assert said["in_combat"]["kind"] == "binary" and said["in_combat"]["auroc_mlp"] > 0.95
    assert {c["constant_per"] for c in result.tables["controls"]} == {"life", "world", "map"}
    assert all(c["r2"] < 0.05 for c in result.tables["controls"])
    assert {p.name for p in (world / "probes").iterdir()} >= {"probes.png", "mediation.png", "targets.csv"}
    assert result.scalars["r2_row"]["unit"] == "R^2" and result.scalars["r2_row"]["n"] == 12
    reads, moves = result.arrays["direction_read"], result.arrays["direction_move"]
    np.testing.assert_allclose((reads * moves).sum(1), 1)  # a move by one reads one more
    index, fold = result.arrays["index"], result.arrays["fold"]
    with RolloutStore(world / "extraction") as store:
        maps = np.array([store.meta(e)["map"] for e in range(len(store))])[index[:, 0]]
    assert all(len(np.unique(fold[maps == m])) == 1 for m in range(12))


def test_fewer_states_are_every_nth_of_each_life(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--shuffles", 19, "--resamples", 99, "--no-mlp", "--threads", 1, "--targets", "row", "step")
    some = ("--max_rows", 400, "--given", "tick")
    result = run(probes, world / "extraction", "--out", tmp_path / "few", *some, *options)
    assert "note: 2 quantities (against exchanged ones) are tested together and p is never" in capsys.readouterr().err
    index = result.arrays["index"]
    assert len(index) <= 400 and (np.diff(index[index[:, 0] == 0, 1]) == 3).all() and len(np.unique(index[:, 0])) == 36
    assert [row["target"] for row in result.tables["targets"]] == ["row", "step"]
    assert "mlp" not in result.tables["targets"][0]
    bare = run(probes, world / "extraction", "--out", tmp_path / "bare", "--given", *options)
    assert "partial" not in bare.tables["targets"][0] and not (tmp_path / "bare" / "mediation.png").exists()
    assert bare.tables["targets"][0]["verdict"] == "read"


def test_mistakes_with_probes(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = world / "extraction", ("--out", tmp_path / "out")
    for argv, said in (
        (("--targets", "self_golt"), "no quantity 'self_golt' (did you mean self_gold?)"),
        (("--given", "ticks"), "no quantity 'ticks' (did you mean tick?)"),
        (("--targets", "row", "row"), "--targets names 'row' twice"),
        (("--states", "hh"), "no column 'hh'"),
        (("--observation", "obs/Entities:0"), "no column 'obs/Entities'"),
        (("--observation", "obs/Entity:9"), "obs/Entity has rows 0 to 1"),
        (("--observation", "obs/Mask:0"), "obs/Mask has no rows"),
        (("--observation", "obs/Entity:x"), "after the colon comes the number of a row"),
        (("--given", "tick", "column"), "(did you mean col?); leave it out of --given (now tick column)"),
        (("--targets", "row", "self_gold", "--given", "tick"), "self_gold is 0 at every step, so there is nothing"),
        (("--unit", "world", "--folds", "50"), "36 units (world) are too few; at least 100"),
        (("--folds", "2"), "--folds must be at least 3"),
        (("--shuffles", "5"), "--shuffles must be at least 19"),
        (("--first_step", "99"), "no episode is longer than 99 steps"),
    ):
        assert said in fails(capsys, probes, store, *out, *argv)
    assert "no such run directory" in fails(capsys, probes, tmp_path / "none", *out)
    assert not (tmp_path / "out").exists()


def test_patching_finds_the_wiring(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--policy", world / "policy", "--controls", 199, "--states", 120, "--resamples", 99, "--threads", 1)
    argv = ("--probes", world / "probes", "--features", "tick", "in_combat", "row", "--pca_size", 2)
    result = run(patching, world / "extraction", "--out", tmp_path / "patching", *common, *argv)
    said = {(row["direction"], row["head"]): row for row in result.tables["patching"]}
    more = "moves it more than random directions do"
    assert said["tick", "Move.Direction"]["verdict"] == more
    assert said["in_combat", "Attack.Style"]["verdict"] == more
    assert said["tick", "Attack.Style"]["kl"] < 0.01 * said["tick", "Move.Direction"]["kl"]
    assert said["row", table.ALL]["verdict"] != more and said["row", table.ALL]["kl"] < 1e-3
    assert said["tick", "Buy.MarketItem"]["verdict"] == "never had a choice"
    assert {d for d, _ in said} == {"pca:0", "pca:1", "tick", "in_combat", "row"}
    beside = {row["direction"]: row for row in result.tables["read_used"]}
    read = {row["target"]: row for row in Result.load(world / "probes").tables["targets"]}
    assert list(beside) == ["tick", "in_combat", "row"]  # what probes read; no principal components
    assert beside["row"]["r2"] == read["row"]["linear"] > 0.9 and beside["row"]["read"] == read["row"]["verdict"]
    assert beside["row"]["used"] != more and beside["row"]["kl"] == said["row", table.ALL]["kl"]  # read, not used
    assert beside["tick"]["used"] == more and beside["tick"]["most_moved"] == "Move.Direction"
    assert result.notes["identity"] == 0 and result.notes["unit"] == "map"
    e, t = result.arrays["index"].T, result.arrays["donor_index"]
    assert (e[0] == t[:, 0]).all() and (e[1] != t[:, 1]).all()
    drawn = {"patching.png", "controls.png", "doses.png", "read_used.png", "read_used.csv"}
    assert {p.name for p in (tmp_path / "patching").iterdir()} >= drawn
    out = capsys.readouterr().out
    assert "tick -> Move.Direction" in out and "changes 0 nats" in out and "row: a probe reads R2" in out
    with RolloutStore(world / "extraction") as store, artefacts.new_run(tmp_path / "basis", "hidden_states", {}) as own:
        fit_pca(store.pooled("h")[0]["h"], 4, store.manifest["facts"]["agent"]).save(own.path)
    own_basis = ("--basis", tmp_path / "basis", "--basis_kind", "pca", "--direction_ids", "pca:0", 3, "--pca_size", 0)
    any_life = run(
        patching, world / "extraction", "--out", tmp_path / "any", *common, *own_basis, "--donor", "any", "--doses", 1
    )
    again = {(row["direction"], row["head"]): row for row in any_life.tables["patching"]}
    assert not (tmp_path / "any" / "read_used.png").exists() and "read_used" not in any_life.tables
    assert {d for d, _ in again} == {"pca:0", "pca:3"} and len(any_life.tables["doses"]) == 6
    np.testing.assert_allclose(any_life.arrays["direction_read"][0], result.arrays["direction_read"][0], atol=1e-5)
    with RolloutStore(world / "extraction") as store:
        maps = np.array([store.meta(e)["map"] for e in range(len(store))])
    here, there = (maps[any_life.arrays[k][:, 0]] for k in ("index", "donor_index"))
    assert (here != there).all()


def test_patching_takes_an_adopted_agent_with_one_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planted agent's cause moves its only head; the nuisance, which a probe decodes, does not."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    options = PlantedOptions()
    agent, known = PlantedAgent(options), truth(options)
    (tmp_path / "mine.py").write_text(
        "from envs.planted import PlantedAgent, PlantedOptions\n\n\n"
        "def make_agent(spec):\n    return PlantedAgent(PlantedOptions(**spec.options))\n"
    )
    torch.save(agent.state_dict(), tmp_path / "mine.pt")
    adopted = ["--weights", str(tmp_path / "mine.pt"), "--env", "planted/confounded", "--out", str(tmp_path / "agent")]
    adopt.main(cli.parse(adopt.AdoptConfig, [str(tmp_path / "mine.py"), *adopted], adopt.STAGE))
    record.main(record.RecordConfig(agent=tmp_path / "agent", out=tmp_path / "rollouts", episodes=40, slots=8))
    name = artefacts.read_manifest(tmp_path / "agent")["facts"]["agent"]
    with artefacts.new_run(tmp_path / "basis", "hidden_states", {}) as opened:
        replace(known.basis, agent=name).save(opened.path)
    words = ("--policy", tmp_path / "agent", "--basis", tmp_path / "basis", "--basis_kind", known.basis.kind)
    more = ("--pca_size", 0, "--controls", 299, "--states", 100, "--resamples", 99, "--threads", 1)
    result = run(patching, tmp_path / "rollouts", "--out", tmp_path / "patching", *words, *more)
    said = {(row["direction"], row["head"]): row for row in result.tables["patching"]}
    cause, nuisance = (known.basis.names[i] for i in (known.causal, known.nuisance))
    assert {head for _, head in said} == {"action", table.ALL} and result.notes["heads"] == ["action", table.ALL]
    assert said[cause, "action"]["verdict"] == "moves it more than random directions do"
    assert said[nuisance, "action"]["kl"] < 1e-6 < said[cause, "action"]["kl"]
    assert f"{cause} -> action" in capsys.readouterr().out


def test_mistakes_with_patching(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(extraction: str, *argv: object, policy: str = "policy") -> str:
        return fails(capsys, patching, world / extraction, "--policy", world / policy, "--out", tmp_path / "out", *argv)

    assert "from another policy" in said("extraction", policy="another")
    assert "value of a recorded state is" in said("late")
    assert "has no observations (Entity, Mask)" in said("imported")
    assert "--controls must be at least 50" in said("extraction", "--controls", 9)
    assert "no direction to patch" in said("extraction", "--pca_size", 0)
    assert "--features belongs to --probes" in said("extraction", "--features", "tick")
    assert "no probe of 'ticks' (did you mean tick?)" in said(
        "extraction", "--probes", world / "probes", "--features", "ticks"
    )
    assert "--doses are different shares" in said("extraction", "--doses", 1, 2)
    assert "choose 1 to 16" in said("extraction", "--pca_size", 99)
    assert "holds no agent" in said("extraction", policy="extraction")
    assert not (tmp_path / "out").exists()


def test_half_written_and_foreign_inputs_are_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = shutil.copytree(world / "extraction", tmp_path / "half")
    (half / "manifest.json").unlink()
    for module in (probes, patching):
        policy = () if module is probes else ("--policy", world / "policy")
        assert "half-written" in fails(capsys, module, half, *policy, "--out", tmp_path / "out")
    assert "was written by stage 'extract_activations'" in fails(
        capsys, patching, world / "extraction", "--policy", world / "policy", "--probes", world / "extraction",
        "--out", tmp_path / "out",
    )  # fmt: skip
