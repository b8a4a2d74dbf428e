"""A small chain of runs for the panel's tests: an untrained agent of CoinRun and a simulator around it, what both
played, directions, behaviours, saliency in eight bits, and a study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from agents.record import RecordConfig, main as record
from agents.recurrent import AgentConfig, RecurrentAgent, load_agent, save_agent
from analysis.saliency.__main__ import SaliencyConfig, main as saliency
from core.artefacts import Result, new_run, write_json
from core.contracts import EnvSpec
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore
from envs.procgen import ProcgenEnv, ProcgenOptions
from generative.record_samples import RecordSamplesConfig, main as record_samples
from generative.rssm import ModelConfig
from generative.simulator import save_simulator, simulator_of
from generative.train import GenTrainConfig
from tests.conftest import write_study

K, P = 4, 3  # directions of ICA, and of PCA
SAMPLES, STEPS = 6, 8
NAMES = {0: "walks <b>right</b>", 1: "jumps & waits"}  # text that would be markup if it were not text


def coinrun_spec() -> EnvSpec:
    """Of the real game, as its own environment says it."""
    env = ProcgenEnv(ProcgenOptions(game="coinrun", use_backgrounds=False, restrict_themes=True), 1, 1)
    spec = env.spec
    env.close()
    return spec


def make_runs(root: Path) -> None:
    """agent, simulator, rollouts, samples, hidden_states, behaviours, saliency and interventions."""
    torch.manual_seed(0)
    with new_run(root / "agent", "train", {}) as run:
        net = AgentConfig(encoder="strided", embedding_size=8, hidden_size=6)
        agent = RecurrentAgent(net, coinrun_spec())
        save_agent(agent, run.path)
    agent = load_agent(root / "agent")
    write_world(root / "simulator", agent)
    record(RecordConfig(agent=root / "agent", out=root / "rollouts", episodes=2, slots=2, threads=1))
    record_samples(RecordSamplesConfig(
        simulator=(root / "simulator",), rollouts=root / "rollouts", out=root / "samples", samples=SAMPLES, steps=STEPS,
        threads=1,
    ))  # fmt: skip
    write_directions(root / "hidden_states", root / "rollouts", fingerprint(agent))
    write_behaviours(root / "behaviours", root, fingerprint(agent))
    names = tuple(f"ica:{k}" for k in range(K))
    saliency(SaliencyConfig(
        simulator=root / "simulator", samples=root / "samples", hidden_states=root / "hidden_states",
        out=root / "saliency", sample_ids=("0", "to", "4"), quantities=("action", "value", *names), methods=(),
        steps=STEPS, quantised=True, video=False, threads=1,
    ))  # fmt: skip
    write_study(root / "interventions", root / "simulator")


def write_world(path: Path, agent: RecurrentAgent) -> None:
    """An untrained simulator in which nothing ever ends."""
    sizes = ModelConfig(deterministic_size=8, hidden_size=8, groups=2, classes=2, depth=4, head_layers=1, latent_size=4)
    simulator = simulator_of(sizes, agent)
    with torch.no_grad():
        [*simulator.world.terminal_head.parameters()][-1].fill_(-9.0)
    config = GenTrainConfig(agent=path.parent / "agent", rollouts=path.parent / "rollouts", out=path)
    with new_run(path, "train_gen_model", config, {"agent": path.parent / "agent"}) as run:
        save_simulator(simulator, run.path)
        run.facts = {"agent": fingerprint(agent)}


def write_directions(path: Path, rollouts: Path, agent: str, **inputs: Path) -> None:
    """Directions of h that are its first numbers (ica) and its last ones (pca), z-scored."""
    with RolloutStore(rollouts) as store:
        data, index = store.pooled("h")
    h = torch.from_numpy(data["h"])
    mean, std = h.mean(0), h.std(0).clamp_min(1e-3)
    parts = {"ica": torch.eye(h.shape[1])[:K], "pca": torch.eye(h.shape[1])[-P:]}
    bases = {kind: Basis(kind, mean, std, eye.T.contiguous(), eye, agent=agent) for kind, eye in parts.items()}
    arrays = {"index": index, "source": np.zeros(len(index), np.int8)}
    arrays |= {f"c_{kind}": basis.project(h).numpy() for kind, basis in bases.items()}
    result = Result(arrays=arrays, notes={"hidden_size": h.shape[1]})
    result.scalar("ica_stability_median", 0.9, "Iq", 4)
    with new_run(path, "hidden_states", {"seed": 0}, {"rollouts": rollouts, **inputs}) as run:
        for basis in bases.values():
            basis.save(run.path)
        result.save(run.path)
        run.facts = {"agent": agent}


def write_behaviours(path: Path, root: Path, agent: str) -> None:
    """Two behaviours: steps up to the fourth, and later ones."""
    arrays: dict[str, np.ndarray] = {}
    for source, name in (("real", "rollouts"), ("sim", "samples")):
        with RolloutStore(root / name) as store:
            _, index = store.pooled("value")
        arrays |= {f"index_{source}": index, f"labels_{source}": (index[:, 1] >= 4).astype(np.int16)}
    result = Result(arrays={**arrays, "sample_labels": np.zeros(SAMPLES, np.int64)}, notes={"behaviours": 2})
    for name in ("stability", "share_from_time", "share_from_time_floor"):
        result.scalar(name, 0.5, "1", 4, (0.4, 0.6))
    result.tables = {
        "behaviours": [{"behaviour": b, "name": NAMES[b], "share": 0.5, "n_steps": 9} for b in NAMES],
        "mdp": [],
    }  # fmt: skip
    inputs = {"rollouts": root / "rollouts", "samples": root / "samples"}
    with new_run(path, "behaviours", {"seed": 0}, inputs) as run:
        result.save(run.path)
        write_json(run.path / "behaviours.json", {str(b): name for b, name in NAMES.items()})
        run.facts = {"agent": agent}
