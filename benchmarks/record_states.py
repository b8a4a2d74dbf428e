"""What the states for ``record.py --resume`` cost a recording: ``python benchmarks/record_states.py``

Other sizes, by record.py's flags: ``python benchmarks/record_states.py -- --episodes 128 --explore_share 1 --random 1``

One recording, in a temporary directory.  Its time, and within it that of saving states, are of the CPU (process) and on
the wall; the rate without states is that of the rest.  So what else runs on the machine adds to both alike.  The
allocator is the system's, not the scripts' (core.config.tune_allocator), which makes large temporaries dearer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

FLAGS = ["--agent", "bundles/coinrun-robust/agent", "--episodes", "512", "--threads", "1"]


def main(flags: list[str]) -> None:
    from agents import record, recording_state
    from core import config as cli
    from core.episodes import RolloutStore

    spent, states = [0.0, 0.0], []
    real_save, real_write = recording_state.Saves._save, record.write_episodes

    def clocks() -> tuple[float, float]:
        return time.process_time(), time.perf_counter()

    def save(self: Any, **parts: Any) -> None:
        before = clocks()
        real_save(self, **parts)
        spent[:] = [s + b - a for s, a, b in zip(spent, before, clocks(), strict=True)]
        rows = sum(parts["recorder"]["lengths"]) if parts.get("recorder") else 0
        states.append(((self._out / recording_state.STATE).stat().st_size, rows))

    # The snapshots and the rows are gathered before they are saved.
    real_step = recording_state.Saves.after_step

    def after_step(self: Any, *args: Any) -> None:
        before, inside = clocks(), list(spent)
        real_step(self, *args)
        spent[:] = [s + b - a for s, a, b in zip(inside, before, clocks(), strict=True)]

    total = [0.0, 0.0]

    def write(*args: Any, **named: Any) -> Any:
        before = clocks()
        kept = real_write(*args, **named)
        total[:] = [b - a for a, b in zip(before, clocks(), strict=True)]
        return kept

    recording_state.Saves._save, recording_state.Saves.after_step = save, after_step  # type: ignore[method-assign, assignment]
    record.write_episodes = write
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rollouts"
        record.main(cli.parse(record.RecordConfig, [*FLAGS, *flags, "--out", str(out)], record.STAGE))
        with RolloutStore(out) as store:
            steps, shards = int(store.steps.sum()), len(list(out.glob("*.h5")))
        size = sum(p.stat().st_size for p in out.glob("*.h5"))
    for clock, all_of_it, saving in zip(("CPU", "wall"), total, spent, strict=True):
        print(f"{clock:5} {steps / all_of_it:8,.0f} steps/s with states, {steps / (all_of_it - saving):8,.0f} without: "
              f"{1 - saving / all_of_it:.3f} of the rate")  # fmt: skip
    print(f"{steps:,} steps, {shards} shards of {size / shards / 1e6:.1f} MB")
    for bytes_, rows in states:
        print(f"state of {bytes_ / 1e6:.3f} MB, {rows:,} steps of running episodes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flags", nargs="*", help="record.py's, after --")
    main(parser.parse_args().flags)
