"""The activations stage on a full-sized extraction: ``python benchmarks/analysis_activations.py [--metric-only]
[--rows N]``.

Makes an extraction of 300 lives (by default 30,000 records after subsampling, 256 units) in a temporary directory,
runs the stage as a user does and prints its time on the wall and of CPU, and its memory, beside what is asked.
Activations are a mixture of six behaviours that follow each other at random, a smooth course over the game, a constant
a life and slow noise; the 14 features and the position follow those.  What else runs on the machine adds to the time
on the wall only.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LIVES, UNITS, STATES, SUBSAMPLE = 300, 256, 6, 10
ASKED = {False: 360, True: 20}  # seconds on the wall, two cores
FEATURES = (
    "n_visible_entities", "n_visible_npcs", "n_visible_players", "self_health", "self_food", "self_water", "self_gold",
    "max_combat_level", "in_combat", "n_inventory_items", "tick", "is_moving", "is_attacking", "is_trading",
)  # fmt: skip


def write_extraction(path: Path, records: int, seed: int = 0) -> None:
    """An extraction with about so many records at SUBSAMPLE."""
    from core import artefacts
    from core.contracts import EnvSpec, Field
    from core.episodes import Episode, StoreWriter

    rng = np.random.default_rng(seed)
    longest = round(records * SUBSAMPLE / LIVES / (1 - 0.5 * 0.35))
    centre = rng.standard_normal((STATES, UNITS))
    course = rng.standard_normal((4, UNITS))
    slow = rng.standard_normal((10, UNITS)) / np.sqrt(10)
    spec = EnvSpec(env_id="nmmo", obs={"Tick": Field(shape=(1,), dtype="int16")}, action_names=("stay",), slots=1)
    with artefacts.new_run(path, "extract_activations", {}) as run:
        with StoreWriter(run.path) as writer:
            for e in range(LIVES):
                n = longest if e % 2 else round(longest * rng.uniform(0.3, 1))  # every other one dies early
                t = np.arange(n)
                state = rng.integers(STATES, size=n // 30 + 1).repeat(30)[:n]
                walk = np.cumsum(0.05 * rng.standard_normal((n, 10)), 0)
                u = 3 * t / longest
                h = centre[state] + 1.2 * np.stack([np.sin(u), np.cos(u), u / 2, np.ones(n)], 1) @ course
                h += np.tanh(walk) @ slow + 0.4 * rng.standard_normal(UNITS) + 0.7 * rng.standard_normal((n, UNITS))
                normal = rng.standard_normal((n, 8))
                fight = state == 0
                features = [
                    rng.poisson(6 + 4 * fight), rng.poisson(4, n), rng.poisson(2 + 3 * fight),
                    100 - 25 * fight - t / 40 + 8 * normal[:, 0], 100 - t % 120 + 5 * normal[:, 1],
                    100 - t % 90 + 5 * normal[:, 2], t / 50 + normal[:, 3], 1 + t // 100, fight & (rng.random(n) < 0.8),
                    np.minimum(12, t // 60), t, (state != 3) & (rng.random(n) < 0.8), fight & (rng.random(n) < 0.6),
                    (state == 5) & (rng.random(n) < 0.1),
                ]  # fmt: skip
                place = np.clip(rng.integers(20, 140, 2) + np.cumsum(rng.integers(-1, 2, (n, 2)), 0), 16, 144)
                zero = np.zeros(n, np.float32)
                writer.add(
                    Episode(
                        obs={}, h=np.tanh(h).astype(np.float32), value=zero, action=np.zeros((n, 3), np.int64),
                        reward=zero, terminated=True, truncated=False,
                        meta={"world": e // 16, "agent": e % 16, "map": 0},
                        truth={"features": np.stack(features, 1).astype(np.float32),
                               "position": place.astype(np.int16)},
                    )
                )  # fmt: skip
        artefacts.write_json(run.path / "spec.json", spec.to_json())
        np.save(run.path / "map_0.npy", np.zeros((160, 160), np.uint8))
        run.facts = {"agent": "synthetic", "policy": "synthetic", "features": list(FEATURES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metric-only", action="store_true")
    parser.add_argument("--before-umap", action="store_true", help="cluster 30 principal components, not the map")
    parser.add_argument("--rows", type=int, default=30_000, help="records after subsampling")
    parser.add_argument("--out", type=Path, help="keep the extraction and the clusters here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        if not (folder / "extraction" / "manifest.json").exists():
            write_extraction(folder / "extraction", arguments.rows)
        flags = (
            ["--metric-only"] if arguments.metric_only else ["--cluster-before-umap"] if arguments.before_umap else []
        )
        command = [sys.executable, "-m", "analysis.activations", str(folder / "extraction"), *flags]
        wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--out", str(folder / "clusters"), "--overwrite"], cwd=ROOT, check=True)
        wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{wall:.0f} s on the wall ({cpu:.0f} s of CPU, {after.ru_maxrss / 2**20:.1f} GiB at most); asked: "
        f"{ASKED[arguments.metric_only]} s on the wall for 30,000 records x {UNITS}"
    )


if __name__ == "__main__":
    main()
