"""Probes: how fast, in how much memory, and do they say what is there?  ``python -m benchmarks.probes WHAT``

    made --episodes 570 --path runs/made        a recording of Craftax's sizes: 1,341 numbers a step, most of them 0, a
                                                GRU agent of 256 with an embedding of 256, 45 quantities
    speed --path runs/made                      the table of all quantities by all inputs: seconds, and the most memory
    alarms --seeds 200                          planted rows: how often an advantage is found where there is one
                                                and where there is none; and what a split by step makes of a number of a
                                                life

570 episodes are 100,000 steps, 2,000 are 350,000.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path

import numpy as np
import torch

from agents.play import tensors
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from analysis.probes.__main__ import main as probes
from analysis.probes.config import ProbesConfig
from analysis.probes.inputs import Input, kept
from analysis.probes.matrix import CONTROL, NO, YES, Rows, advantage_rows, input_rows, score_inputs
from core import artefacts
from core.artefacts import write_json
from core.contracts import EnvSpec, Field
from core.directions import fingerprint
from core.episodes import Episode, StoreWriter
from core.stats import share_interval

OBS, TILES, CELLS, HIDDEN, LENGTH = 1341, 21, 63, 256, 175
ACTIONS = tuple(f"a{i}" for i in range(17))
SPEC = EnvSpec(env_id="made/craftax", obs={"x": Field(shape=(OBS,), dtype="float32")}, action_names=ACTIONS, slots=1)
INPUTS = ("h", "embedding", "obs", "obs:4", "obs+time", "random", "time", "actions", "time+actions", "episode")


def made_episode(rng: np.random.Generator, agent: RecurrentAgent, number: int) -> Episode:
    """A walk over tiles; what is worn down and eaten up again; achievements that come in time."""
    steps = int(np.clip(rng.gamma(4, LENGTH / 4), 20, 1000))
    position = np.cumsum(rng.integers(-1, 2, (steps, 2)), 0) + 32
    tile_TC = (position[:, :1] * 7 + position[:, 1:] * 3 + np.arange(CELLS)) % TILES
    obs = np.zeros((steps, OBS), np.float32)
    obs[:, : CELLS * TILES] = (tile_TC[:, :, None] == np.arange(TILES)).reshape(steps, -1)
    counts = np.cumsum(rng.random((steps, 12)) < 0.02, 0).clip(max=9)
    direction = rng.integers(4, size=steps)
    obs[:, 1323:1335] = counts / 10
    obs[:, 1335:1339] = direction[:, None] == np.arange(4)
    light = np.abs(np.cos(np.arange(steps) * np.pi / 300)).astype(np.float32)
    obs[:, 1339] = light
    worn = 9 - (np.arange(steps)[:, None] // rng.integers(20, 40, 4)) % 9
    clock = rng.random(4) * 20 + np.arange(steps)[:, None] % rng.integers(20, 40, 4)
    done = np.cumsum(rng.random((steps, 22)) < 1 / 300, 0) > 0
    truth = {"position": position.astype(np.int32), "direction": direction, "light_level": light,
             "timestep": np.arange(steps), "achievements": done, "inventory": counts}  # fmt: skip
    truth |= {n: worn[:, i] for i, n in enumerate(("health", "food", "drink", "energy"))}
    truth |= {n: clock[:, i].astype(np.float32) for i, n in enumerate(("recover", "hunger", "thirst", "fatigue"))}
    with torch.no_grad():
        state, h = agent.initial(1), np.empty((steps, HIDDEN), np.float32)
        seen = agent.encode(tensors({"x": obs}, torch.device("cpu")))
        for t in range(steps):
            state = agent.advance(seen[t : t + 1], state, torch.tensor([t == 0]))
            h[t] = state[0].numpy()
    return Episode(
        obs={"x": obs}, h=h, value=h[:, 0], action=rng.integers(17, size=steps), reward=np.zeros(steps, np.float32),
        terminated=True, truncated=False, truth=truth, meta={"seed": number, "slot": 0},
    )  # fmt: skip


def made(path: Path, episodes: int) -> None:
    """The recording, with its agent beside it."""
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="mlp", embedding_size=HIDDEN, hidden_size=HIDDEN), SPEC).eval()
    with artefacts.new_run(path / "agent", "train", {}, overwrite=True) as run:
        save_agent(agent, run.path)
        run.facts = {"agent": fingerprint(agent)}
    rng = np.random.default_rng(0)
    with artefacts.new_run(path / "rollouts", "record", {}, {"agent": path / "agent"}, overwrite=True) as run:
        write_json(run.path / "spec.json", SPEC.to_json())
        run.facts = {"agent": fingerprint(agent), "source": "real"}
        with StoreWriter(run.path) as writer:
            steps = 0
            for number in range(episodes):
                episode = made_episode(rng, agent, number)
                steps += episode.steps
                writer.add(episode)
    print(f"{episodes} episodes, {steps:,} steps: {path}")


def speed(path: Path, threads: int, mlp: bool) -> None:
    """The stage, timed."""
    began, used = time.perf_counter(), time.process_time()
    probes(ProbesConfig(extraction=path / "rollouts", agent=path / "agent", inputs=INPUTS, classes=("direction",),
                        out=path / "probes", threads=threads, mlp=mlp, max_rows=10_000, overwrite=True))  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    took, cpu = time.perf_counter() - began, time.process_time() - used
    print(f"{took:.0f} s ({cpu:.0f} s of CPU time), at most {peak:.2f} GB; "
          f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip


def planted_rows(seed: int, episodes: int = 40) -> tuple[Rows, list[Input]]:
    """``kept`` is in the state and not in the observation, ``shown`` in both, ``neither`` in none, all slow; the state
    also holds slow features of its own; ``flag`` and ``kind`` are made of ``kept``, ``blind`` of ``neither``."""
    rng = np.random.default_rng(seed)
    step_E = {e: np.arange(rng.integers(20, 60)) for e in range(episodes)}
    slow = []
    for step in step_E.values():
        x = rng.standard_normal((len(step), 8))
        for t in range(1, len(step)):
            x[t] = 0.95 * x[t - 1] + np.sqrt(1 - 0.95**2) * x[t]
        slow.append(x)
    z = np.concatenate(slow)
    noise = rng.standard_normal((len(z), 6))
    obs = np.column_stack([z[:, 1] + 0.3 * noise[:, 0], z[:, 6:], noise[:, 1]]).astype(np.float32)
    h = np.column_stack([obs, z[:, 0] + 0.5 * noise[:, 2], z[:, 3:6], noise[:, 3]]).astype(np.float32)
    quantities = {
        "kept": z[:, 0], "shown": z[:, 1], "neither": z[:, 2], "flag": (z[:, 0] > 0.5).astype(float),
        "kind": np.digitize(z[:, 0], [-0.5, 0.5]).astype(float), "blind": (z[:, 2] > 0.5).astype(float),
    }  # fmt: skip
    unit_N = np.repeat(np.arange(episodes), [len(t) for t in step_E.values()])
    return Rows(step_E, quantities, unit_N), [kept("h", h), kept("obs", obs)]


THERE = ("kept", "flag", "kind")  # what the state says and the observation does not


def alarms(seeds: int) -> None:
    """How often each verdict is given, over planted rows of other seeds."""
    config = ProbesConfig(mlp=False, exchanges=1, resamples=999)
    said: dict[str, list[str]] = {}
    beyond: dict[str, list[bool]] = {}
    leaks: list[tuple[float, float]] = []
    for seed in range(seeds):
        rows, inputs = planted_rows(seed)
        scored = score_inputs(rows, inputs, ("kind",), config)
        for row in advantage_rows(scored, inputs, config):
            said.setdefault(row["target"], []).append(row["verdict"])
            beyond.setdefault(row["target"], []).append(row["advantage_low"] > 0)
        leaks += [(r["score"], r["by_step"]) for r in input_rows(scored, config)
                  if r["target"] == CONTROL and r["input"] == "h"]  # fmt: skip
    for target, words in said.items():
        for what, hits in ((YES, words.count(YES)), (NO, words.count(NO)), ("interval above 0", sum(beyond[target]))):
            low, high = share_interval(hits, len(words))
            print(f"{target} ({'there' if target in THERE else 'not there'}): {what} {hits / len(words):.3f} "
                  f"[{low:.3f}, {high:.3f}]")  # fmt: skip
    unit, step = np.mean(leaks, 0)
    print(f"a random number of each life, from h: R2 {unit:.3f} by life, {step:.3f} by step, over {seeds} seeds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("made", "speed", "alarms"))
    parser.add_argument("--path", type=Path, default=Path("runs/made"))
    parser.add_argument("--episodes", type=int, default=570)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no_mlp", action="store_true")
    given = parser.parse_args()
    if given.what == "made":
        made(given.path, given.episodes)
    elif given.what == "speed":
        speed(given.path, given.threads, not given.no_mlp)
    else:
        torch.set_num_threads(1)
        alarms(given.seeds)


if __name__ == "__main__":
    main()
