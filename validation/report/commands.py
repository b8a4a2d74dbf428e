"""The commands that a page prints, for a shell in the repository's root: to repeat a stage, and to make one that is
missing.  Each is tried on the stage's own parser before it is printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import artefacts, config as cli
from core.contracts import UserError
from core.stages import MADE_BY, OF_AN_AGENT as STAGES, Stage
from validation.report.lineage import shown

# Inputs whose names do not say by which flag they are given, by how these begin.
FLAG_OF = {
    "begin_with_": "begin_with",
    "agent_": "agents",
    "other_simulator_": "simulator",
    "other_policy_": "policies",
    "other_judge": "judge",
}


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
    words += ["--out", shown(out)]
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
    return f"python {stage.command} {shlex.join(words)}"


def _flags(given: Mapping[str, Sequence[Path]]) -> list[str]:
    return [word for flag, paths in given.items() for word in (f"--{flag}", *map(shown, paths))]


def _inputs(path: Path, manifest: Mapping[str, Any]) -> dict[str, list[Path]]:
    """{flag: directories} of what a run was made from."""
    out: dict[str, list[Path]] = {}
    for name, known in manifest["inputs"].items():
        flag = next((flag for start, flag in FLAG_OF.items() if name.startswith(start)), name)
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
