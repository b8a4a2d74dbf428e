"""The panel: pages to look at an agent's runs, and to ask.

``python -m validation.panel build RUN...`` writes pages that open from disk.  ``python -m validation.panel serve
RUN...`` shows the same on this machine, where interventions and edits can be tried at once.  A RUN is a run directory,
or one that holds some.  What the page holds is contents.py's, how it is written page.py's, what it says first is the
report's (validation/report).
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.panel", file=sys.stderr)
    sys.exit(2)

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from tyro.conf import Positional

from core import artefacts, config as cli
from core.contracts import UserError
from core.stages import OF_AN_AGENT
from validation.panel import studies
from validation.panel.contents import Block, Options, contents, not_drawn
from validation.panel.first import films, first_page, sections, views_of
from validation.panel.page import PAGE, write
from validation.report.contents import parts_of
from validation.report.lineage import Chosen, Traced, check_unchanged, choose, traced

STAGE = "panel"
ViewName = Literal["all", "film", "saliency", "path", "courses", "bars"]


@dataclass(frozen=True, kw_only=True)
class PanelConfig:
    """Write the panel's page about the runs of one agent, world and simulator (build), or show it (serve)."""

    task: Positional[Literal["build", "serve"]] = "build"
    """build: write a page that opens from disk; serve: show it on this machine, with live interventions"""
    runs: Positional[tuple[Path, ...]] = (Path("runs/demo"),)
    """run directories, or directories that hold some"""
    agent: Path | None = None
    """run directory of the agent that the panel is about; none: the one that all runs share"""
    simulator: Path | None = None
    """run directory of its simulator; none: the one that all runs share"""
    single_file: bool = False
    """everything in panel.html; default: pictures and maps lie beside it, and are read when they are shown"""
    only: tuple[int, ...] = ()
    """ids of samples: a small page of one file with these alone, a figure for a paper"""
    view: ViewName = "all"
    """what --only shows of each"""
    samples: int = 200
    """samples that are shown with frames: those with saliency first"""
    most: int = 4000
    """samples that filters look through"""
    steps: int = 32
    """transitions of a sample that are shown"""
    basis_kind: str = "ica"
    """basis of the directions: pca, ica, nmf, neurons, probe (of analysis.probes)"""
    starts: int = 12
    """serve: starts in the real game (0: none, and nothing is live)"""
    port: int = 0
    """serve: port on 127.0.0.1; 0: any that is free"""
    out: Path = Path("runs/panel")
    """build: run directory to write; the page is panel.html in it"""
    seed: int = 0
    """serve: seed of the starts and of the action noise"""
    threads: int = 1
    """CPU threads: what is asked live are one or two rows, which a second thread slows down"""
    overwrite: bool = False
    """replace an earlier panel in --out"""


def check(config: PanelConfig) -> Options:
    """What is shown; UserError on what cannot be."""
    cli.require(1, samples=config.samples, most=config.most, steps=config.steps)
    cli.require(0, starts=config.starts, port=config.port)
    if not config.runs:
        raise UserError("name the runs to show, as in: python -m validation.panel build runs/demo")
    if config.view != "all" and not config.only:
        raise UserError("--view says what --only SAMPLES shows; give both")
    if len(set(config.only)) < len(config.only):
        raise UserError("--only names a sample twice")
    return Options(
        samples=config.samples, most=config.most, steps=config.steps, only=config.only, view=config.view,
        basis_kind=config.basis_kind,
    )  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """What the page is about: the runs of an agent, where there are any; the runs of studies; why others are not."""

    chosen: Chosen | None
    studies: tuple[Traced, ...]
    left_out: tuple[str, ...] = ()


def shown_of(config: PanelConfig) -> Shown:
    """The runs among those that were named.  UserError where nothing of them can be shown."""
    for root in config.runs:
        if not root.is_dir():
            raise UserError(f"{root}: no such directory")
    chosen = None
    others, _ = studies.find(config.runs, None)
    roots = [root for root in config.runs if traced(root, OF_AN_AGENT)[0] or not others]
    if roots:
        chosen = choose(roots[0], OF_AN_AGENT, config.agent, config.simulator, roots[1:])
    elif config.only:
        raise UserError("--only shows samples of an agent; these runs have none: name its samples too")
    runs, left_out = studies.find(config.runs, chosen)
    left_out = tuple(dict.fromkeys((*(chosen.left_out if chosen else ()), *left_out)))
    left_out = (*left_out, *studies.without_view(config.runs, chosen, runs, left_out))
    if chosen is not None:
        of_it = [run for stage in studies.OF_A_SIMULATOR for run in chosen.of(stage)]
        runs = [run for run in runs if run.stage not in studies.OF_A_SIMULATOR] + of_it
        left_out = (*left_out, *not_drawn(chosen))
        chosen = replace(chosen, left_out=left_out)
    return Shown(chosen, tuple(runs), left_out)


def write_panel(
    path: Path, about: Shown, config: PanelConfig, options: Options, made: Path,
    served: Callable[[], bool] | None = None,
) -> int:  # fmt: skip
    """Write the page into ``path``, as it will lie in ``made``; the bytes written.  served: for a page that is served,
    says whether that is over, and no more is written then.  UserError where a run was replaced meanwhile."""
    size = _write(path, about, config, options, made, served)
    check_unchanged((*(about.chosen.runs if about.chosen else ()), *about.studies))
    return size


def _write(
    path: Path, about: Shown, config: PanelConfig, options: Options, made: Path,
    served: Callable[[], bool] | None,
) -> int:  # fmt: skip
    line = f"python -m validation.panel {' '.join(sys.argv[1:])}".strip()
    chosen = about.chosen
    more = studies.studies(about.studies, chosen, made)
    if chosen is None:
        views = [studies.first_page(about.studies, about.left_out, more), *more.views]
        facts = {"studies": more.facts, "made": line, "missing": {}, "commands": {}}
        return write(path, "Studies", views, facts, more.blocks, config.single_file, served is not None)
    there = contents(chosen, options, made)
    there.facts |= {"made": line, "studies": more.facts}
    if config.only:
        title = f"Samples {', '.join(map(str, config.only))} in {there.facts['world']}"
        return write(path, title, views_of(figure=True), there.facts, there.blocks, True)
    parts = parts_of(chosen, made, about.studies)
    there.facts["films"], shown = films(chosen)
    views = [
        first_page(parts, chosen, there.facts.get("bases", ())),
        *views_of(served is not None),
        *sections(parts, chosen, made),
        *more.views,
    ]
    # The first picture first, and one at a time.
    blocks: Iterator[Block] = itertools.chain(there.blocks, shown, more.blocks)
    if served is not None:
        blocks = itertools.takewhile(lambda _: not served(), blocks)
    return write(path, parts.title, views, there.facts, blocks, config.single_file, served is not None)


def main(config: PanelConfig) -> None:
    options = check(config)
    torch.set_num_threads(config.threads)
    about = shown_of(config)
    for words in about.left_out:
        print(words)
    if config.task == "serve":
        from validation.panel.server import serve

        serve(config, options, about.chosen, lambda path, ended: write_panel(path, about, config, options, path, ended))
        return
    named: dict[str, Path] = {}
    runs = {run.path.resolve(): run for run in (*(about.chosen.runs if about.chosen else ()), *about.studies)}
    for path, run in runs.items():
        names = itertools.chain([path.name], (f"{path.name}_{n}" for n in itertools.count(2)))
        named[next(name for name in names if name not in named)] = run.path
    inputs = artefacts.Inputs(named)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as made:
        size = write_panel(made.path, about, config, options, config.out)
        made.record("size", size / 1e6, "MB")
    print(f"panel: {config.out / PAGE} ({size / 1e6:.1f} MB)")


if __name__ == "__main__":
    cli.run(PanelConfig, main, STAGE)
