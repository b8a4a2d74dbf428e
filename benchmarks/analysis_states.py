"""Fits of 100,000 hidden states and of 10,000 world states, beside the naive way.

``python benchmarks/analysis_states.py [--rollouts runs/rollouts]`` prints one table; about five minutes on two cores.
Without --rollouts the states are synthetic: 16 independent Laplace-driven AR(1) sources (coefficient 0.9) in
episodes of 80 steps, mixed into 64 neurons, with noise, through a tanh.  Seconds on the wall and of CPU: what else
runs on the machine adds to the first only.  The naive ways whiten anew in every restart, and compute all 4,096
components to keep 128.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

STATES, SIZE, SOURCES, STEPS = 100_000, 64, 16, 80
WORLD_STATES, WORLD_SIZE, WORLD_PARTS = 10_000, 4096, 400
RESTARTS, CLUSTERS = 20, 32
NAIVE_RESTARTS = 4  # restarts of the naive ICA that are run; the rest would take as long


def synthetic(n: int, size: int, sources: int, seed: int = 0) -> np.ndarray:
    """float32 [n, size]: the docstring's mixture, its sources of decreasing strength."""
    rng = np.random.default_rng(seed)
    x = rng.laplace(size=(-(-n // STEPS), STEPS, sources)).astype(np.float32)
    for t in range(1, STEPS):
        x[:, t] = 0.9 * x[:, t - 1] + np.float32(np.sqrt(0.19)) * x[:, t]
    x = x.reshape(-1, sources)[:n] * np.geomspace(1, 0.1, sources, dtype=np.float32)
    x = x @ rng.standard_normal((sources, size)).astype(np.float32)
    x += 0.3 * rng.standard_normal(x.shape, dtype=np.float32)
    return np.tanh(0.3 * x)


def recorded(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The first 100,000 states (or fewer) of rollouts, and their episodes."""
    from core.episodes import RolloutStore

    columns, index = RolloutStore(path).pooled("h", first=1)
    return columns["h"][:STATES], index[:STATES, 0]


def main() -> None:
    import torch
    from hdbscan import HDBSCAN
    from sklearn.decomposition import PCA, FastICA

    from analysis.shared.clusters import k_means
    from analysis.shared.directions import fit_ica, fit_pca
    from analysis.shared.maps import embed
    from analysis.states.fit import project, spread
    from core.config import tune_allocator

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=Path, help="real rollouts instead of synthetic states")
    arguments = parser.parse_args()
    tune_allocator()
    torch.set_num_threads(2)
    if arguments.rollouts is None:
        h, episode = synthetic(STATES, SIZE, SOURCES), np.arange(STATES) // STEPS
    else:
        h, episode = recorded(arguments.rollouts)
    seconds: dict[str, tuple[float, float]] = {}

    def timed(name: str, call: Callable[[], Any], times: float = 1) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        found = call()
        seconds[name] = (times * (time.perf_counter() - wall), times * (time.process_time() - cpu))
        print(f"{name:<58}{seconds[name][0]:>9.1f}{seconds[name][1]:>9.1f}", flush=True)
        return found

    def total(name: str, parts: tuple[str, ...], most: float) -> None:
        wall, cpu = (sum(seconds[p][i] for p in parts) for i in (0, 1))
        print(f"{name:<58}{wall:>9.1f}{cpu:>9.1f}   asked: {most:.0f} s on the wall\n", flush=True)

    what = f"{len(h):,} hidden states x {h.shape[1]}, {len(np.unique(episode)):,} episodes"
    print(f"{what:<58}{'wall s':>9}{'CPU s':>9}")
    pca = timed("PCA, 64", lambda: fit_pca(h, h.shape[1]))
    ica = timed(f"ICA, 16, {RESTARTS} restarts", lambda: fit_ica(h, 16, restarts=RESTARTS, episode_N=episode))
    x = spread(pca, project(pca, h))
    timed(f"k-means, {CLUSTERS}", lambda: k_means(x, CLUSTERS, 0))
    total("together", tuple(seconds), 60)
    print(f"(ICA: {ica.facts['restarts_converged']} of {RESTARTS} restarts converged)")

    def naive_ica() -> None:
        rng = np.random.default_rng(0)
        groups = np.split(np.arange(len(h)), np.flatnonzero(np.diff(episode)) + 1)
        for seed in range(NAIVE_RESTARTS):
            rows = np.concatenate([groups[g] for g in rng.integers(len(groups), size=len(groups))])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                FastICA(16, whiten="unit-variance", max_iter=500, random_state=seed).fit(h[rows].astype(np.float64))

    timed(f"naive ICA: all of FastICA {RESTARTS} times", naive_ica, RESTARTS / NAIVE_RESTARTS)
    ratio = seconds[f"naive ICA: all of FastICA {RESTARTS} times"][1] / seconds[f"ICA, 16, {RESTARTS} restarts"][1]
    print(f"naive / ours, CPU: {ratio:.1f}\n")

    before = tuple(seconds)
    at = timed("UMAP, 2-D, seeded, on one thread", lambda: embed(x, "umap", 2, 0))
    label = timed("HDBSCAN of the map", lambda: HDBSCAN(min_cluster_size=len(at) // 100).fit_predict(at))
    total("together", tuple(k for k in seconds if k not in before), 240)
    print(f"({label.max() + 1} clusters, {(label < 0).mean():.0%} noise)\n")

    d = synthetic(WORLD_STATES, WORLD_SIZE, WORLD_PARTS, 1)
    ours = timed(f"PCA, 128, of {WORLD_STATES:,} world states x {WORLD_SIZE:,}", lambda: fit_pca(d, 128, space="d"))
    z = ((d - d.mean(0)) / d.std(0)).astype(np.float64)
    exact = timed("naive: every component, float64", lambda: PCA(svd_solver="covariance_eigh").fit(z))
    share = exact.explained_variance_ratio_[:128]
    off = np.abs(np.array(ours.facts["explained"]) / share - 1).max()
    ratio = np.divide(*[seconds[k][1] for k in list(seconds)[-1:-3:-1]])
    print(f"naive / ours, CPU: {ratio:.1f}; the shares of the 128 components differ by at most {off:.1e} of themselves")


if __name__ == "__main__":
    main()
