"""Which runs may stand on one page: those whose manifests chain to one agent, one world and one simulator."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from agents.load import load_agent
from core import artefacts, config as cli
from core.contracts import EnvSpec, UserError
from core.directions import fingerprint
from generative.load import load_simulator

COMPARED = "other_"  # inputs so named are what a stage compares with: it is not about them
DESCRIPTIONS = (*artefacts.AGENTS, *artefacts.SIMULATORS, "spec.json")  # which world a directory is of
MODELS = ("train", "train_craftax", "train_gymnasium", "train_gen_model")  # stages that others are made with

Manifests = dict[Path, Mapping[str, Any]]  # {resolved directory: manifest}


@dataclass(frozen=True)
class Traced:
    """A run directory, and everything that it was made from."""

    path: Path  # as the user wrote it
    chain: Manifests  # every directory after its inputs, itself last
    compared: Manifests  # what it only compares with

    @property
    def manifest(self) -> Mapping[str, Any]:
        return next(reversed(self.chain.values()))

    @property
    def stage(self) -> str:
        return str(self.manifest["stage"])

    @cached_property
    def agents(self) -> dict[str, Path]:
        """{fingerprint: directory} of those that it is about."""
        return agents_in(self.chain)

    @cached_property
    def simulators(self) -> dict[str, Path]:
        return simulators_in(self.chain)

    @cached_property
    def worlds(self) -> dict[str, Path]:
        """{the world's description: a directory that says so}."""
        return {world: p for p, m in self.chain.items() if (world := _world(p, m)) is not None}


def agent_described(path: Path) -> dict[str, Any]:
    """What an agent's directory says of it: its world (``spec``), and its network or its module."""
    file = artefacts.description(artefacts.read_manifest(path), artefacts.AGENTS)
    assert file is not None  # check: it is one of agents_in
    about: dict[str, Any] = artefacts.load_json(path, file)
    return about


def agents_in(chain: Manifests) -> dict[str, Path]:
    """{fingerprint: directory} of the agents among directories."""
    return _named(chain, artefacts.AGENTS, load_agent)


def simulators_in(chain: Manifests) -> dict[str, Path]:
    return _named(chain, artefacts.SIMULATORS, load_simulator)


def _named(chain: Manifests, kinds: Sequence[str], load: Any) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path, manifest in chain.items():
        if artefacts.description(manifest, kinds) is not None:
            found.setdefault(_fingerprint(load, path, _known(path)), path)
    return found


@lru_cache(maxsize=64)
def _fingerprint(load: Any, path: Path, manifest_sha256: str) -> str:
    return fingerprint(load(path))


def _world(path: Path, manifest: Mapping[str, Any]) -> str | None:
    """The world that a directory's own description names, but for which of its levels are drawn."""
    file = artefacts.description(manifest, DESCRIPTIONS)
    if file is None:
        return None
    said = artefacts.load_json(path, file)
    spec = EnvSpec.from_json(said.get("spec", said))
    obs = {name: [list(field.shape), field.dtype] for name, field in spec.obs.items()}
    return json.dumps([spec.env_id, spec.settings, obs, spec.action_names], sort_keys=True)


def shown(path: Path) -> str:
    """A path for a person and for a command: from the repository's root where it lies below it."""
    path = Path(path).resolve()
    return (path.relative_to(cli.ROOT) if path.is_relative_to(cli.ROOT) else path).as_posix()


def trace(path: Path) -> Traced:
    """Walk a run's inputs.  UserError where one is gone or is no longer the one that it was made from, or where they
    lead to another agent or simulator than the run itself names."""
    chain: Manifests = {}
    compared: Manifests = {}

    def walk(directory: Path, found: Manifests) -> None:
        if directory in found:
            return
        manifest = artefacts.read_manifest(directory)
        for name, known in manifest["inputs"].items():
            source = (directory / known["path"]).resolve()
            if not (source / artefacts.MANIFEST).exists():
                raise UserError(f"its input {name!r} is gone from {shown(source)}")
            if _known(source) != known["manifest_sha256"]:
                raise UserError(f"its input {name!r}, {shown(source)}, is no longer the one that it was made from")
            walk(source, compared if name.startswith(COMPARED) else found)
        found[directory] = manifest

    walk(path.resolve(), chain)
    run = Traced(path, chain, compared)
    for kind, have in (("agent", run.agents), ("simulator", run.simulators)):
        said = run.manifest["facts"].get(kind)
        if said is not None and have and said not in have:
            raise UserError(f"it names the {kind} {said}, its inputs lead to {' and '.join(have)}")
    return run


# ---------------------------------------------------------------------------- one page


@dataclass(frozen=True)
class Chosen:
    """The runs of one page, all of one agent, one world and at most one simulator."""

    root: Path  # the directory that they lie in
    runs: tuple[Traced, ...]
    agent: Path
    simulator: Path | None
    left_out: tuple[str, ...] = ()  # sentences: which other runs lie there, and why they are not on the page

    def of(self, stage: str) -> list[Traced]:
        """The runs of a stage."""
        return [run for run in self.runs if run.stage == stage]

    @cached_property
    def every(self) -> Manifests:
        """All that the page stands on, what is only compared with too; every directory after its inputs."""
        out: dict[Path, Mapping[str, Any]] = {}
        for run in self.runs:
            for path, manifest in {**run.compared, **run.chain}.items():
                out.setdefault(path, manifest)
        return out


def choose(
    root: Path, stages: Collection[str], agent: Path | None = None, simulator: Path | None = None,
    more: Sequence[Path] = (),
) -> Chosen:  # fmt: skip
    """The runs in ``root`` (and in ``more``; or that such a directory is itself) of these stages that belong together:
    to ``agent`` and ``simulator`` if given, else to the ones that all share.  Evaluations of that very agent count
    where they lie beside it, too.

    UserError where there is nothing to show, or where several agents, worlds or simulators are there and none was
    chosen.
    """
    runs: list[Traced] = []
    left_out: list[str] = []
    for directory in (root, *more):
        if not directory.is_dir():
            raise UserError(f"{directory}: no such directory")
        found, broken = traced(directory, stages)
        runs += [run for run in found if run.path.resolve() not in {r.path.resolve() for r in runs}]
        left_out += broken
    anchors = {"agents": agent or simulator, "worlds": agent or simulator, "simulators": simulator}
    ours: dict[str, str] = {}
    for kind, anchor in anchors.items():
        ours[kind] = _shared(kind, runs if anchor is None else [trace(anchor)], root)
        kept = []
        for run in runs:
            have = getattr(run, kind)
            if set(have) == {ours[kind]} or (kind == "simulators" and not have):
                kept.append(run)
            else:
                left_out.append(f"{shown(run.path)} is left out: it is {_of(kind, have)}.")
        runs = kept
    if not runs:
        why = f": {' '.join(left_out)}" if left_out else f"; a page shows the stages {', '.join(stages)}"
        raise UserError(f"{root} holds no run for a page{why}")
    homes = [path for run in runs for path in run.agents.values()] + [agent] * (agent is not None)
    there = {_known(run.path) for run in runs}
    for parent in dict.fromkeys(home.resolve().parent for home in homes if home is not None):
        beside, broken = traced(parent, ("evaluate",))
        for run in beside:
            if set(run.agents) == {ours["agents"]} and _known(run.path) not in there:  # copies of one are one
                there.add(_known(run.path))
                runs.append(run)
        left_out += [words for words in broken if words not in left_out]
    simulators = [path for run in runs for path in run.simulators.values()]
    return Chosen(root, tuple(runs), next(iter(runs[0].agents.values())), next(iter(simulators), None), tuple(left_out))


def _known(path: Path) -> str:
    return artefacts.sha256(path / artefacts.MANIFEST)


def traced(root: Path, stages: Collection[str]) -> tuple[list[Traced], list[str]]:
    """The whole runs of some stages among a directory and those in it (in a simulator's: its agent, a copy), and a
    sentence for each broken chain."""
    runs, broken = [], []
    seen: set[str] = set()
    inside = [] if any((root / name).exists() for name in artefacts.SIMULATORS) else root.iterdir()
    for path in (root, *sorted(inside, key=lambda p: (p.is_symlink(), p))):
        if path.name.startswith(".") and path != root:  # set aside while it is replaced
            continue
        if (place := os.path.realpath(path)) in seen:  # a link to another one
            continue
        seen.add(place)
        try:
            whole = (path / artefacts.MANIFEST).exists()
            if whole and artefacts.read_manifest(path)["stage"] in stages:
                runs.append(trace(path))
            elif not whole and artefacts.begun_by(path) in stages:
                artefacts.read_manifest(path)  # says that it is half-written
        except UserError as error:
            why = str(error).removeprefix(f"{path} is ")  # the sentence has named it
            why = why if why == str(error) else f"it is {why}"
            broken.append(f"{shown(path)} is left out: {why}.")
        except OSError as error:
            broken.append(f"{shown(path)} is left out: {error.filename or path} cannot be read ({error.strerror}).")
    return runs, broken


def check_unchanged(runs: Iterable[Traced]) -> None:
    """UserError where a run, or what it was made from, is no longer the one that was traced."""
    for path, manifest in {p: m for run in runs for p, m in {**run.compared, **run.chain}.items()}.items():
        if artefacts.read_manifest(path) != manifest:
            raise UserError(f"{shown(path)} was replaced while it was shown; start again")


def _shared(kind: str, runs: Sequence[Traced], root: Path) -> str:
    """The one agent, world or simulator of all runs; '' where there is none.  A model that nothing here was made with
    has no say, nor has a run of several."""
    sides: dict[str, list[Traced]] = {}
    for run in [run for run in runs if run.stage not in MODELS] or runs:
        if len(have := getattr(run, kind)) == 1:
            sides.setdefault(next(iter(have)), []).append(run)
    if len(sides) > 1:
        told = [
            f"{', '.join(r.path.name for r in side)} {_of(kind, getattr(side[0], kind))}" for side in sides.values()
        ]
        how = "--simulator DIR" if kind == "simulators" else "--agent DIR"
        raise UserError(f"{root} holds runs of {len(sides)} {kind}: {'; '.join(told)}; choose with {how}")
    return next(iter(sides), "")


def _of(kind: str, have: Mapping[str, Path]) -> str:
    """'of the agent d50c29196faa5c95 in bundles/coinrun-robust/agent'."""
    one = kind.removesuffix("s")
    names = [json.loads(name)[0] if kind == "worlds" else name for name in have]
    told = [f"the {one} {name} in {shown(path)}" for name, path in zip(names, have.values(), strict=True)]
    return f"of {' and '.join(told) or f'no {one}'}"
