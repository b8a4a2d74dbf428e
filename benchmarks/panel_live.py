"""How long a live question of the panel takes: ``python benchmarks/panel_live.py``.

The bundled agent, its simulator and the real game behind the panel's own worker, without the browser.  A change of the
hidden state is asked for, 32 steps in both worlds, without and with it; then the same with saliency; then questions
that are given up while they run.  CPU seconds are the process's, of all its threads: other work on the machine
disturbs them little.  Wall seconds are from the question to its answer, beside whatever else runs (the load is said).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

CHANGE = {"start": 0, "change": "shift ica:0 by +2"}
QUESTIONS: dict[str, dict[str, Any]] = {
    "unaltered": {"start": 0},
    "a change": CHANGE,
    "always, by memory": {"start": 0, "change": "shift ica:0 by +2 always through memory"},
    "an edit": {"start": 0, "edit": "set velocity 0 0"},
    "a change, and saliency": {**CHANGE, "quantity": "value"},
}
GIVEN_UP: dict[str, dict[str, Any]] = {
    "a change": {**CHANGE, "horizon": 64},
    "saliency": {**CHANGE, "horizon": 64, "quantity": "value", "target": 64},
    "drawing starts": {"draw": True},
}


def finished(worker: Any, job: Any) -> None:
    while job.state in ("waiting", "running"):
        time.sleep(0.002)
    if job.error:
        raise SystemExit(f"{job.asked}: {job.error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulator", type=Path, default=ROOT / "bundles/coinrun-context/simulator")
    parser.add_argument("--steps", type=int, default=32, help="transitions of every run")
    parser.add_argument("--repeats", type=int, default=5, help="of every question, after one that is not counted")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    import torch

    from core.directions import Basis, fingerprint
    from generative.load import load_simulator
    from validation.panel.live import live_of
    from validation.panel.work import Worker

    torch.set_num_threads(asked.threads)
    simulator = load_simulator(asked.simulator)
    size = simulator.agent.points["h"]
    one = torch.eye(size)
    basis = Basis("ica", torch.zeros(size), torch.ones(size), one, one, agent=fingerprint(simulator.agent))
    began, cpu = time.perf_counter(), time.process_time()
    live = live_of(simulator, {"ica": basis}, 2, 0, asked.threads)
    print(f"2 starts: {time.perf_counter() - began:.2f} s, CPU {time.process_time() - cpu:.2f} s")
    worker = Worker(live.answer)
    for name, values in QUESTIONS.items():
        walls, cpus = [], []
        for turn in range(asked.repeats + 1):
            began, cpu = time.perf_counter(), time.process_time()
            finished(worker, worker.ask({"horizon": asked.steps, **values}))
            if turn:
                walls.append(time.perf_counter() - began)
                cpus.append(time.process_time() - cpu)
        print(f"{name}, {asked.steps} steps: CPU {statistics.median(cpus):.2f} s ({min(cpus):.2f} to {max(cpus):.2f}), "
              f"wall {statistics.median(walls):.2f} s ({min(walls):.2f} to {max(walls):.2f}); "
              f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for name, values in GIVEN_UP.items():
        waited = []
        for turn in range(asked.repeats):
            job = worker.ask(values)
            if name == "saliency":  # which begins when all steps are done
                while not job.total or job.done < job.total:
                    time.sleep(0.002)
            time.sleep(0.05 * (turn + 1))
            began = time.perf_counter()
            worker.cancel(job.id)
            finished(worker, job)
            waited.append(time.perf_counter() - began)
        print(f"given up, {name}: over after {statistics.median(waited):.2f} s, at most {max(waited):.2f} s; "
              f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    live.close()


if __name__ == "__main__":
    main()
