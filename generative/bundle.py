"""Put a trained agent, with its simulator or alone, into a small directory that can be shipped:
``python -m generative.bundle --agent runs/agent --simulator runs/simulator --out bundles/mine``.

What is left behind: training states, checkpoints, rollouts, and the simulator's own copy of its agent: it is read
with OUT/agent, so that the two are moved together.  What the manifests of the trainings said
goes along under ``facts.training``, and the bundle's own manifests hold its own hashes.  The
simulator's weights may be stored in half precision (not the statistics by which it reads vectors).  Its agent's stay
what they are, so that it is the same agent, unless --half_agent rounds them: that is an agent of its own, to be bundled
alone first, and then recorded, measured and simulated.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m generative.bundle", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agents.load import load_agent
from agents.recurrent import RecurrentAgent, save_agent
from core import artefacts, config as cli
from core.contracts import Agent, UserError
from core.directions import fingerprint
from core.roll import Simulator
from generative.simulator import as_module, load_simulator, save_simulator

STAGE = "bundle"
KEPT = ("argv", "config", "seed", "code", "packages", "device", "machine", "wall_s", "metrics")


@dataclass(frozen=True, kw_only=True)
class BundleConfig:
    """Export an agent, with its simulator or alone, for shipping."""

    agent: Path
    """run directory of the agent"""
    simulator: Path | None = None
    """run directory of the simulator trained around it; none: the agent alone"""
    out: Path
    """directory to write: OUT/agent and OUT/simulator; where OUT/agent holds this very agent it is left as it is"""
    half: bool = True
    """store the simulator's weights as float16 (its agent's are not touched)"""
    half_agent: bool = False
    """round the agent's weights to float16, for half the size: another agent, which has to be measured, recorded and
    simulated anew (so without --simulator)"""
    overwrite: bool = False
    """replace an earlier bundle in --out"""


def round_to_half(module: torch.nn.Module) -> None:
    """Round every weight, but those of a simulator's agent, to the nearest float16, in place, so that what is saved,
    measured and loaded is one thing."""
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            if not name.startswith("agent."):
                tensor.copy_(tensor.half())


def keep_agent(agent: Agent, source: Path, target: Path) -> None:
    """Write an agent, of whatever kind, as its run directory ``source`` has it; without checkpoints."""
    names = [
        name for name in artefacts.files_of(source)
        if "/" not in name and name != "config.json" and not name.startswith("checkpoint_")
    ]  # fmt: skip
    if type(agent) is RecurrentAgent:
        save_agent(agent, target, small=True)
        names = ["curve.csv"]
    for name in names:
        artefacts.write_atomically(target / name, artefacts.load_bytes(source, name))


def training_of(path: Path) -> dict[str, Any]:
    """What a training's manifest says about how it was made; of a bundle what it says of that, not of the bundling."""
    training = artefacts.training_of(artefacts.read_manifest(path))
    return {k: portable(training[k]) for k in KEPT}


def portable(value: Any) -> Any:
    """JSON with every absolute path cut to its last part: where it was trained is nobody's business."""
    if isinstance(value, dict):
        return {k: portable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [portable(v) for v in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def has(out: Path, agent: Agent) -> bool:
    """Whether OUT/agent holds this agent already."""
    there = out / "agent"
    return (there / artefacts.MANIFEST).exists() and fingerprint(load_agent(there)) == fingerprint(agent)


def main(config: BundleConfig) -> None:
    agent = load_agent(config.agent)
    if config.simulator is None and config.agent.resolve() == (config.out / "agent").resolve():
        raise UserError(f"{config.agent} is where the bundle would be written; give another --out")
    if config.half_agent:
        if config.simulator is not None:
            raise UserError("--half_agent: a simulator is around the agent as it was; bundle the rounded agent alone, "
                            "and train a simulator around that one")  # fmt: skip
        if type(agent) is not RecurrentAgent:
            raise UserError(f"--half_agent rounds recurrent PPO agents, not a {type(agent).__name__}")
        round_to_half(agent)
    if config.simulator is not None and artefacts.OWN_WORLD in artefacts.files_of(config.simulator):
        raise UserError(f"{config.simulator} is a world model of your own, of which no bundle is made: its directory "
                        "holds all that it needs, the agent too, and is copied as it is")  # fmt: skip
    simulator = None if config.simulator is None else load_simulator(config.simulator)
    if simulator is not None and fingerprint(agent) != fingerprint(simulator.agent):
        raise UserError(f"{config.simulator} was not trained around the agent in {config.agent}")
    if simulator is None and (config.out / "simulator" / artefacts.MANIFEST).exists():
        raise UserError(f"{config.out} holds a simulator, which is read with the agent beside it; give --simulator, or "
                        "another --out")  # fmt: skip
    if simulator is not None and has(config.out, agent):
        print(f"{config.out / 'agent'} holds this agent already: left as it is")
    else:
        stage = artefacts.read_manifest(config.agent)["stage"]
        with artefacts.new_run(config.out / "agent", stage, config, overwrite=config.overwrite) as run:
            keep_agent(agent, config.agent, run.path)
            run.facts = {"agent": fingerprint(agent), "training": training_of(config.agent)}
    if simulator is not None and config.simulator is not None:
        keep_simulator(config, config.simulator, simulator)
    size = sum(p.stat().st_size for p in config.out.rglob("*") if p.is_file())
    print(f"bundled {size / 1e6:.1f} MB: {config.out}")


def keep_simulator(config: BundleConfig, source: Path, simulator: Simulator[Any]) -> None:
    """Write OUT/simulator, around the agent of OUT/agent."""
    curve = artefacts.load_bytes(source, "curve.csv")  # before OUT/simulator, which may be the source, is set aside
    warning = artefacts.simulator_warning(source)
    training = training_of(source)
    if config.half:
        round_to_half(as_module(simulator))
    inputs = artefacts.Inputs({"agent": config.out / "agent"})
    with artefacts.new_run(
        config.out / "simulator", "train_gen_model", config, inputs, overwrite=config.overwrite
    ) as run:
        save_simulator(simulator, run.path, half=config.half, beside=True)
        artefacts.write_atomically(run.path / "curve.csv", curve)
        run.facts = {"agent": fingerprint(simulator.agent), "training": training}
        if warning is not None:
            run.facts[artefacts.SIMULATOR_WARNING] = warning


if __name__ == "__main__":
    cli.run(BundleConfig, main, STAGE)
