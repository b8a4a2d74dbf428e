"""One self-contained page about a chain of runs: ``python -m validation.report --runs runs/demo``.

Every sentence and number on it is read from a result on disk.  Which runs may stand together is lineage.py's to
say, what it holds contents.py's, how claims are told claims.py's, what to type commands.py's, and how the page looks
page.py's.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.report", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass
from pathlib import Path

from core import artefacts, config as cli
from core.stages import OF_AN_AGENT
from validation.report.contents import PAGE, build
from validation.report.lineage import check_unchanged, choose, shown

STAGE = "report"


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Write one self-contained HTML page about the runs in a directory that are of one agent, world and simulator."""

    runs: Path = Path("runs/demo")
    """directory that holds the stages' run directories (rollouts, samples, fidelity, hidden_states, ...)"""
    agent: Path | None = None
    """run directory of the agent that the page is about; none: the one that all runs share"""
    simulator: Path | None = None
    """run directory of its simulator; none: the one that all runs share"""
    out: Path = Path("runs/report")
    """run directory to write; the page is report.html in it"""
    seed: int = 0
    """unused: the page is the same for the same runs"""
    threads: int = 2
    """unused: nothing here is heavy"""
    overwrite: bool = False
    """replace an earlier report in --out"""


def main(config: ReportConfig) -> None:
    chosen = choose(config.runs, OF_AN_AGENT, config.agent, config.simulator)
    named: dict[str, Path] = {}
    for run in chosen.runs:
        named[run.path.name if run.path.name not in named else shown(run.path)] = run.path
    inputs = artefacts.Inputs(named)
    page = build(chosen, config.out)
    check_unchanged(chosen.runs)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as made:
        artefacts.write_atomically(made.path / PAGE, page.html.encode())
    for finding in page.findings:
        print(f"  * {finding}")
    print(f"report: {config.out / PAGE}")


if __name__ == "__main__":
    cli.run(ReportConfig, main, STAGE)
