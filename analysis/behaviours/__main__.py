"""What the agent does, as clusters of short histories: ``python -m analysis.behaviours --rollouts runs/rollouts``.

A step's vector is [h ; world components] and how both change over the next 2, 4 and 6 steps, all
z-scored, the changes together as heavy as the state, and reduced by PCA.  Real and simulated steps are
clustered together, so that both can be labelled and a cluster that only the simulator has shows as such.
``plot`` draws everything again, with the names a user has put into behaviours.json.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.behaviours", file=sys.stderr)
    sys.exit(2)

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from threadpoolctl import threadpool_limits

from analysis.behaviours.clustering import cluster_some, summary
from analysis.behaviours.config import BehaviourOptions, check
from analysis.behaviours.figures import draw
from analysis.behaviours.histories import Steps, in_effect, read_steps
from analysis.behaviours.placed import Source, check_placing, place_others, source
from analysis.shared.behaviours import NAMES, STAGE, load_behaviours, sample_labels
from analysis.shared.sources import REAL, open_stores, simulator_of
from analysis.shared.units import units
from analysis.shared.world_states import world_states
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.video import check_video
from core.when import put_rule
from envs.registry import renewed


@dataclass(frozen=True, kw_only=True)
class BehavioursConfig:
    """Cluster what the agent does into behaviours."""

    action: tyro.conf.Positional[Literal["both", "precompute", "plot"]] = "both"
    """precompute writes labels and tables, plot draws those of --behaviours with the names in it, both does both"""
    rollouts: Path | None = Path("runs/rollouts")
    """real rollouts (precompute, both)"""
    samples: Path | None = None
    """simulated rollouts to cluster and label too"""
    simulator: Path | None = None
    """gives world states of the real frames; without it behaviours are clusters of h alone"""
    behaviours: Path | None = None
    """run directory to draw (plot)"""
    out: Path = Path("runs/behaviours")
    """run directory to write"""
    fit: BehaviourOptions = field(default_factory=BehaviourOptions)
    seed: int = 0
    """seed of clusters, bootstraps and the embedding"""
    video: bool = True
    """an MP4 and an endlessly looping GIF of every behaviour too"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def _plot(config: BehavioursConfig) -> None:
    """Figures of a run directory with the names in it now, from the rollouts it was made from."""
    source = config.behaviours
    if source is None:
        raise UserError("plot needs --behaviours DIR, the run directory to draw")
    inputs = artefacts.Inputs({"behaviours": source})
    manifest, names, result = artefacts.read_manifest(source, STAGE), load_behaviours(source).names, Result.load(source)
    if "mdp" not in result.tables:
        raise UserError(f"{source} was written by an earlier version, without the transition graph; make it again")
    fit = cli.from_json(BehaviourOptions, artefacts.load_json(source, "config.json")["config"]["fit"], STAGE)
    stores: list[RolloutStore | None] = [None, None]
    for i, name in enumerate(("rollouts", "samples")):
        if (known := manifest["inputs"].get(name)) is not None:
            stores[i] = store = RolloutStore(source / known["path"])
            if artefacts.manifest_sha256(store.path) != known["manifest_sha256"]:
                raise UserError(f"{store.path} is not what {source} was made from any more; make the behaviours again")
    with artefacts.new_run(config.out, f"{STAGE}_plot", config, inputs, overwrite=config.overwrite) as run:
        drawn = draw(result, names, stores, run.path, fit, config.video)
        run.facts = {"agent": manifest["facts"]["agent"]}
    print(f"drew {len(drawn)} figures and videos: {config.out}")


def _sources(
    config: BehavioursConfig, real: RolloutStore, simulated: RolloutStore | None, simulator: Any, device: torch.device
) -> list[Source | None]:
    """Real steps and simulated ones, with world states if there is a simulator; actions that do the same are one."""
    first, fit = config.fit.first_step, config.fit
    lead = 0 if simulator is None else simulator.world.initial_frames - 1
    spec = renewed(real.spec)

    def in_words(steps: Steps) -> Steps:
        return in_effect(steps, spec.distinct_actions()) if spec.same_actions else steps

    unit_E = units(real, real)

    def of_real(episodes: Sequence[int]) -> Steps:
        world = None if simulator is None else world_states(simulator.world, real, device, episodes)
        return in_words(read_steps(real, first, world, lead, unit_E, episodes))

    found: list[Source | None] = [source(real, max(first, lead), unit_E, of_real, fit, config.seed), None]
    if simulated is not None:
        column = None if simulator is None else "world/d"
        samples, sample_unit_E = simulated, units(simulated, real)

        def of_samples(episodes: Sequence[int]) -> Steps:
            return in_words(read_steps(samples, first, column, unit_E=sample_unit_E, episodes=episodes))

        of_all = source(samples, first, sample_unit_E, of_samples, fit, config.seed)
        found[1] = replace(of_all, fitted=[]) if fit.fit_on == "real" else of_all
    return found


def main(config: BehavioursConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config.fit)
    if config.video and config.action != "precompute":
        check_video()
    if config.action == "plot":
        _plot(config)
        return
    if config.rollouts is None:
        raise UserError("--rollouts DIR is needed (real rollouts, written by record.py)")
    if config.behaviours is not None:
        raise UserError("--behaviours belongs to plot; precompute and both read --rollouts")
    inputs = artefacts.Inputs({
        "rollouts": config.rollouts, "samples": config.samples, "simulator": config.simulator
    })  # fmt: skip
    real, simulated, agent = open_stores(config.rollouts, config.samples)
    simulator = None
    if config.simulator is not None:
        simulator = simulator_of(config.simulator, agent, config.rollouts, simulated, device)
    sources = _sources(config, real, simulated, simulator, device)
    of, alike = check_placing(sources, config.fit)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        # The simulated ones first: they are read at once.
        steps = [s.steps_of(s.fitted) if s is not None and s.fitted else None for s in reversed(sources)][::-1]
        spec = renewed(real.spec)
        with threadpool_limits(config.threads):
            parts = spec.parts if spec.action_parts else ()
            names_of = list(spec.distinct_actions())
            result, finished = cluster_some(steps, config.fit, config.seed, names_of, parts, of, alike)
        lived = steps[REAL]
        assert lived is not None
        _put_rule(result, lived)
        del steps, lived
        if finished is not None:
            with threadpool_limits(config.threads):
                place_others(result, finished, sources)
        result.arrays["sample_labels"] = (
            np.zeros(0, np.int64)
            if simulated is None
            else sample_labels(result.arrays["labels_sim"], result.arrays["index_sim"], len(simulated))
        )
        for name, read in zip(("rollouts", "samples"), sources, strict=True):
            if read is not None:
                read.drawn.say(result, name)
        names = {int(row["behaviour"]): str(row["name"]) for row in result.tables["behaviours"]}
        if run.replaced is not None:
            names = _kept_names(run.replaced, result, names)
        result.save(run.path)
        artefacts.write_json(run.path / NAMES, {str(b): name for b, name in names.items()})
        if config.action == "both":
            with run.figures():
                draw(result, names, (real, simulated), run.path, config.fit, config.video)
        run.facts = {"agent": agent, "vector": result.notes["vector"], "left_out": result.notes["left_out"]}
        if simulator is not None:
            run.facts["simulator"] = fingerprint(simulator)
        run.metrics = dict(result.scalars)
    print(summary(result, config.out))


def _put_rule(result: Result, real: Steps) -> None:
    """How the behaviours are told while the agent acts, beside them: --when and interventions read it from here."""
    where = {(int(e), int(t)): i for i, (e, t) in enumerate(real.index_N2)}
    index_N2 = result.arrays["index_real"]
    rows = np.array([where[int(e), int(t)] for e, t in index_N2])
    put_rule(result, real.h_NH[rows], result.arrays["labels_real"].astype(np.int64), index_N2[:, 0])


def _kept_names(replaced: Path, result: Result, names: dict[int, str]) -> dict[int, str]:
    """The names of the run that is replaced, if it has the same labels; new clusters get new names."""
    try:
        before, old = Result.load(replaced).arrays, load_behaviours(replaced).names
    except (UserError, KeyError):  # half-written, or of another stage
        return names
    same = all(np.array_equal(before[k], result.arrays[k]) for k in ("labels_real", "index_real"))
    if not same:
        print("the clusters are not those that were here before: behaviours.json has new names")
    return old if same else names


if __name__ == "__main__":
    cli.run(BehavioursConfig, main, STAGE)
