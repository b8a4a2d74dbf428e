"""The whole way in one command: ``python -m validation.demo`` (or ``make demo``).

Runs every stage, each into its own run directory below ``--out``, and writes ``report.html``.  Nothing passes between
stages except through those directories, so that two can run beside each other, in processes of their own: their many
small operations gain less from a second thread.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.demo", file=sys.stderr)
    sys.exit(2)

import contextlib
import io
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from core import artefacts, config as cli, figures
from core.contracts import UserError
from core.stages import OF_AN_AGENT as STAGES
from validation.report import contents
from validation.report.lineage import choose

STAGE = "demo"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """From the bundled agent and simulator to a tested causal claim and a report."""

    bundle: Path = Path("bundles/coinrun-robust")
    """directory with the trained agent/ and simulator/"""
    out: Path = Path("runs/demo")
    """run directory to write; an earlier demo in it is replaced, anything else is left alone"""
    sizes: str = "demo"
    """which configs/NAME.json gives each stage its sizes, in a section named after its directory below --out"""
    seed: int = 0
    """seed of every stage"""
    threads: int = 2
    """CPU threads; from 2 on, two stages run beside each other with half of them each"""
    device: str = "cpu"
    """cpu or cuda: where the stages run that have a --device"""
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
        own |= {"seed": config.seed, "threads": max(1, config.threads // 2)}
        own |= {"device": config.device} if hasattr(cls, "device") else {}
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


class Done(NamedTuple):
    """A stage that is over."""

    name: str
    seconds: float
    said: str  # what it printed, where it did not print it itself


def in_turn(stages: Mapping[str, Any], begins: Callable[[str], None]) -> Iterator[Done]:
    """Stage after stage, in this process."""
    for name, config in stages.items():
        begins(name)
        yield at_work(name, config)


def beside_each_other(stages: Mapping[str, Any], begins: Callable[[str], None]) -> Iterator[Done]:
    """Two stages at a time, each as soon as what it reads is there."""
    width = shutil.get_terminal_size().columns
    pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), set_up, (figures.also.get(), width))
    running: dict[Future[Done], str] = {}
    waiting, over = dict(stages), set[str]()
    try:
        while waiting or running:
            for name in [n for n in waiting if over >= {*reads(PARTS[n])} & set(stages)][: 2 - len(running)]:
                begins(name)
                with held_back():
                    running[pool.submit(apart, name, waiting.pop(name))] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                over.add(running.pop(future))
                yield future.result()
    except BaseException:  # Ctrl-C too: the other stage saves what it has to, and ends
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is over; a process that begins in it hears none until it is set up."""
    came: list[int] = []
    # Blocked for what is started here; that alone holds nothing back, as the system gives a signal to any thread that
    # hears it, and Python then raises in this one.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)  # what waited comes now
        for number, handler in before.items():
            signal.signal(number, handler)
        for heard in came:
            signal.raise_signal(heard)


def set_up(formats: tuple[str, ...], width: int) -> None:
    """A process of ``beside_each_other``'s; who is in charge hears Ctrl-C, and ends it by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.environ["COLUMNS"] = str(width)
    cli.tune_allocator()
    figures.also.set(formats)


def at_work(name: str, config: Any) -> Done:
    """A stage, which prints what it says itself."""
    began = time.monotonic()
    try:
        STAGES[PARTS[name]].door.main(config)
    except UserError as error:
        raise UserError(f"stage {name}: {error}") from error
    return Done(name, time.monotonic() - began, "")


def apart(name: str, config: Any) -> Done:
    """``at_work`` in a process of its own, whose words are kept until it is done."""
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), cli.terminable(),
        threadpool_limits(config.threads),
    ):  # fmt: skip
        done = at_work(name, config)
    return done._replace(said=out.getvalue())


def main(config: DemoConfig) -> None:
    cli.device_of(config.device)
    models = {name: config.bundle / name for name in ("agent", "simulator")}
    if lacking := [f"{name}/" for name, path in models.items() if not path.is_dir()]:
        why = f"holds no {' and no '.join(lacking)}" if config.bundle.is_dir() else "no such directory"
        raise UserError(f"--bundle {config.bundle}: {why}; name a bundle, such as {DemoConfig.bundle}")
    inputs = artefacts.Inputs(models)
    stages = plan(config)
    names, began = list(stages), time.time()
    count = len(stages) + 1

    def title(name: str) -> str:
        return f"[{names.index(name) + 1}/{count}] {name}"

    def begins(name: str) -> None:
        say(f"{title(name)}: {STAGES[PARTS[name]].does}")

    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        for name, seconds, said in (in_turn if config.threads == 1 else beside_each_other)(stages, begins):
            run.record(f"wall_{name}", seconds, "s")
            if said:
                say(f"{title(name)} is done:\n{said.rstrip()}")
            say(f"        {seconds:.0f} s, {clock(time.time() - began)} in all")
        run.inputs |= {name: config.out / name for name in stages}
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
