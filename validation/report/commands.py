"""The commands that a page prints, for a shell in the repository's root: to repeat a stage, and to make one that is
missing.  Each is tried on the stage's own parser before it is printed."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from core import artefacts, config as cli
from core.contracts import UserError
from validation.report.lineage import shown


@dataclass(frozen=True)
class Stage:
    """A stage whose runs a page knows: where its code is, and the flags that name what it is made from."""

    module: str
    config: str  # the class of its configuration there
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()  # can do without
    script: str = ""  # in the root, where it is not run as a module

    @property
    def door(self) -> ModuleType:
        """The module with the configuration and main: what ``python -m`` runs."""
        found = importlib.import_module(self.module)
        return importlib.import_module(f"{self.module}.__main__") if hasattr(found, "__path__") else found

    @property
    def cls(self) -> type:
        found: type = getattr(self.door, self.config)
        return found


STAGES = {
    "train": Stage("agents.train", "TrainConfig", script="train.py"),
    "evaluate": Stage("agents.evaluate", "EvaluateConfig", ("agent",)),
    "record": Stage("agents.record", "RecordConfig", ("agent",), script="record.py"),
    "train_gen_model": Stage("generative.train", "GenTrainConfig", ("agent", "rollouts"), script="train_gen_model.py"),
    "record_samples": Stage("generative.record_samples", "RecordSamplesConfig", ("simulator",), ("rollouts",)),
    "fidelity": Stage("validation.fidelity", "FidelityConfig", ("simulator", "rollouts")),
    "hidden_states": Stage("analysis.hidden_states", "HiddenStatesConfig", ("agent", "rollouts"), ("samples",)),
    "env_states": Stage("analysis.env_states", "EnvStatesConfig", ("simulator", "rollouts"), ("samples",)),
    "latents": Stage("analysis.latents", "LatentsConfig", ("simulator", "rollouts"), ("samples",)),
    "behaviours": Stage("analysis.behaviours", "BehavioursConfig", ("simulator", "rollouts"), ("samples",)),
    "dynamics": Stage("analysis.dynamics", "DynamicsConfig", ("agent", "rollouts"), ("hidden_states", "behaviours")),
    "saliency": Stage("analysis.saliency", "SaliencyConfig", ("simulator", "samples")),
    "coupling": Stage("analysis.coupling", "CouplingConfig", ("simulator", "samples", "hidden_states"),
                      ("behaviours",)),
    "similarity": Stage("analysis.similarity", "SimilarityConfig", ("agents", "rollouts")),
    "target_functions": Stage("analysis.target_functions", "TargetFunctionsConfig", ("simulator",),
                              ("rollouts", "hidden_states")),
    "interventions": Stage("validation.interventions", "InterventionsConfig", ("simulator", "hidden_states"),
                           ("behaviours",)),
}  # fmt: skip
MADE_BY = {"agent": "train", "simulator": "train_gen_model", "rollouts": "record", "samples": "record_samples"}


@dataclass(frozen=True)
class Command:
    """A line for the shell, and what is to be known of it; without a line, why there is none."""

    line: str
    note: str = ""


def repeat(path: Path, out: Path) -> Command:
    """What makes a run again into ``out``: from its saved configuration; where today's code does not read that any
    more, from its inputs alone."""
    manifest = artefacts.read_manifest(path)
    name, stage = manifest["stage"], STAGES[manifest["stage"]]
    if "training" in manifest["facts"]:
        needed = ", ".join(["that configuration as a file", *(f"the {flag}" for flag in stage.needs)])
        return Command("", f"{shown(path)} is a copy made for shipping. How it was trained is under facts.training in "
                       f"its manifest.json; to train it again takes {needed}.")  # fmt: skip
    saved = artefacts.load_json(path, "config.json")["config"]
    inputs = _inputs(path, manifest)
    known = dict(_leaves(saved))
    moved = {flag: paths for flag, paths in inputs.items() if _directories(known.get(flag)) != paths}
    words = ["--config", shown(path / "config.json"), *_flags(moved)]
    words += ["--no-resume"] * bool(saved.get("resume"))
    words += ["--data_save_dir" if saved.get("data_save_dir") else "--out", shown(out)]
    try:
        cli.parse(stage.cls, ["--config", str(path / "config.json"), *words[2:]], name)
    except UserError as error:
        return Command(_line(stage, [*_flags(inputs), "--out", shown(out)]),
                       f"The configuration saved in {shown(path)} is of another version of the code ({error}); this "
                       f"command takes today's defaults instead.")  # fmt: skip
    return Command(_line(stage, words))


def make(name: str, known: Mapping[str, Path], root: Path) -> Command:
    """What makes a missing stage in ``root`` from ``known`` directories, {flag: path}; where it needs one that is
    missing too, what makes that one."""
    stage = STAGES[name]
    for flag in stage.needs:
        if flag not in known:
            before = make(MADE_BY.get(flag, flag), known, root)
            return Command(before.line, before.note or f"It needs {flag.replace('_', ' ')}, so first:")
    given = {flag: [known[flag]] for flag in (*stage.needs, *stage.takes) if flag in known}
    defaults = cli.to_json_defaults(stage.cls)
    none = [f"--{flag}" for flag in stage.takes if flag not in known and defaults[flag] is not None]
    words = [*_flags(given), *(word for flag in none for word in (flag, "None"))]
    return Command(_line(stage, [*words, "--out", shown(_free(root / name))]))


def verify(path: Path) -> Command:
    """What checks every file behind a run."""
    return Command(f"python -m core.artefacts verify {shlex.quote(shown(path))}")


def _line(stage: Stage, words: Sequence[str]) -> str:
    return f"python {stage.script or f'-m {stage.module}'} {shlex.join(words)}"


def _flags(given: Mapping[str, Sequence[Path]]) -> list[str]:
    return [word for flag, paths in given.items() for word in (f"--{flag}", *map(shown, paths))]


def _inputs(path: Path, manifest: Mapping[str, Any]) -> dict[str, list[Path]]:
    """{flag: directories} of what a run was made from."""
    out: dict[str, list[Path]] = {}
    for name, known in manifest["inputs"].items():
        flag = "agents" if name.startswith("agent_") else name
        if name == "hidden_states" and manifest["stage"] in ("record", "record_samples"):
            flag = "basis"
        out.setdefault(flag, []).append((path / known["path"]).resolve())
    return out


def _leaves(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every setting by its flag, nested ones too."""
    for key, value in config.items():
        yield from _leaves(value) if isinstance(value, Mapping) else [(key, value)]


def _directories(value: Any) -> list[Path]:
    """What a setting names, for a shell in the repository's root."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return [(cli.ROOT / str(one)).resolve() for one in listed]


def _free(path: Path) -> Path:
    """The path, or with the first number at its end that nothing has yet."""
    tried, number = path, 1
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.name}_{number}")
    return tried
