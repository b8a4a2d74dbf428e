"""The whole way in one command: ``python -m validation.demo`` (or ``make demo``).

Runs every stage in this process, each into its own run directory below ``--out``, and writes
``report.html``.  Nothing passes between stages except through those directories.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.demo", file=sys.stderr)
    sys.exit(2)

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import artefacts, config as cli
from core.contracts import UserError
from core.stages import OF_AN_AGENT as STAGES
from validation.report import contents
from validation.report.lineage import choose

STAGE = "demo"


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """From the bundled agent and simulator to a tested causal claim and a report."""

    bundle: Path = Path("bundles/coinrun-context")
    """directory with the trained agent/ and simulator/"""
    out: Path = Path("runs/demo")
    """run directory to write; an earlier demo in it is replaced, anything else is left alone"""
    sizes: str = "demo"
    """which configs/NAME.json gives each stage its sizes, in a section named after its directory below --out"""
    seed: int = 0
    """seed of every stage"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = True
    """replace an earlier demo, whole or half-written, in --out"""


# {directory below --out, and section of configs/NAME.json: stage}, in order.
PARTS = {
    Path(STAGES[stage].out).name: stage
    for stage in ("record", "record_samples", "fidelity", "hidden_states", "behaviours", "dynamics", "saliency",
                  "coupling", "interventions")
}  # fmt: skip


def reads(stage: str) -> tuple[str, ...]:
    """Flags that name a directory."""
    return (*STAGES[stage].needs, *STAGES[stage].takes)


def plan(config: DemoConfig) -> dict[str, Any]:
    """{name: resolved config} of every stage; raises UserError before anything runs."""
    known: dict[str, Path] = {name: config.bundle / name for name in ("agent", "simulator")}
    out: dict[str, Any] = {}
    for name, stage in PARTS.items():
        cls = STAGES[stage].cls
        known[name] = config.out / name
        own: dict[str, Any] = {**{flag: known[flag] for flag in reads(stage)}, "out": known[name]}
        own |= {"seed": config.seed, "threads": config.threads}
        layer = cli.merge(cli.to_json_defaults(cls), sizes(name, config.sizes))
        out[name] = cli.from_json(cls, cli.merge(layer, cli.to_json(own)), stage)
    return out


def sizes(name: str, preset: str) -> dict[str, Any]:
    """A part's section of the preset, which may not name directories: those are the demo's."""
    section = cli.preset(name, preset)
    for key in (*reads(PARTS[name]), "out"):
        if key in section:
            raise UserError(f"configs/{preset}.json: {name}.{key} is set; the demo chooses directories itself")
    return section


def main(config: DemoConfig) -> None:
    models = {name: config.bundle / name for name in ("agent", "simulator")}
    for path in models.values():
        artefacts.read_manifest(path)
    stages = plan(config)
    count, began = len(stages) + 1, time.time()
    with artefacts.new_run(config.out, STAGE, config, models, overwrite=config.overwrite) as run:
        for number, (name, stage_config) in enumerate(stages.items(), 1):
            stage = STAGES[PARTS[name]]
            say(f"[{number}/{count}] {name}: {stage.does}")
            stage_began = time.time()
            try:
                stage.door.main(stage_config)
            except UserError as error:
                raise UserError(f"stage {name}: {error}") from error
            run.inputs[name] = config.out / name
            run.record(f"wall_{name}", time.time() - stage_began, "s")
            say(f"        {time.time() - stage_began:.0f} s, {clock(time.time() - began)} in all")
        say(f"[{count}/{count}] report: put it on one page")
        page = contents.build(choose(config.out, STAGES, models["agent"], models["simulator"]), config.out)
        artefacts.write_atomically(config.out / contents.PAGE, page.html.encode())
        run.record("wall", time.time() - began, "s")
    say("")
    say(f"Done in {clock(time.time() - began)}.  What was found:")
    for finding in page.findings:
        say(f"  * {finding}")
    say(f"Report: {config.out / contents.PAGE}  (open it in a browser)")


def say(text: str) -> None:
    """A line of progress, at once, after whatever the stage printed."""
    sys.stderr.flush()
    print(text, flush=True)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


if __name__ == "__main__":
    cli.run(DemoConfig, main, STAGE)
