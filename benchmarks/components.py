"""Are independent components what the data say, or what a processor's rounding says?

``python -m benchmarks.components ROLLOUTS`` fits 16 components of a recording's memory in two processes, one with this
machine's arithmetic and one with that of an older kind (AVX2), by ``analysis.shared.directions`` and by the
iteration of FastICA (scikit-learn's), and prints how alike the components of the same number are, as |correlation|.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.ablations import environment

OLDER = {
    "OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
}  # fmt: skip
SIZE, RESTARTS = 16, 20


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rollouts", type=Path, help="a run directory of record.py")
    parser.add_argument("--restarts", type=int, default=RESTARTS)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        for solver in ("picard", "fastica"):
            found = []
            for name, more in {"this": {}, "older": OLDER}.items():
                to = Path(folder) / f"{solver}_{name}.npz"
                code = "import sys; from benchmarks.components import fit; fit(*sys.argv[1:])"
                words = (args.rollouts.absolute(), args.restarts, solver, to)
                command = [sys.executable, "-c", code, *map(str, words)]
                subprocess.run(command, env={**environment(), **more}, check=True)
                with np.load(to) as read:
                    found.append({k: read[k] for k in read.files})
            one, other = found
            alike_K = np.abs(np.corrcoef(one["coordinate"].T, other["coordinate"].T)[:SIZE, SIZE:].diagonal())
            apart = np.abs(np.abs(one["coordinate"]) - np.abs(other["coordinate"])).max()
            print(f"{solver}: {one['converged']} and {other['converged']} of {args.restarts} restarts converged; of "
                  f"{SIZE} components {(alike_K > 0.99).sum()} are the same (|r| above .99 at the same number), "
                  f"furthest apart by {apart:.2g} standard deviations")  # fmt: skip
            print("  |r|", " ".join(f"{r:.2f}" for r in alike_K), f"\n  stability {np.round(one['stability'], 2)}")


def fit(rollouts: str, restarts: str, solver: str, to: str) -> None:
    """Write the coordinates of every state, float32 [N, K]."""
    from analysis.shared import directions
    from analysis.states.fit import project
    from core.episodes import RolloutStore

    if solver == "fastica":
        directions._unmix = fast_ica
    columns, index = RolloutStore(Path(rollouts)).pooled("h", first=1)
    h_NH = columns["h"]
    basis = directions.fit_ica(h_NH, SIZE, restarts=int(restarts), seed=0, episode_N=index[:, 0])
    facts = basis.facts
    np.savez(to, coordinate=project(basis, h_NH), stability=facts["stability"], converged=facts["restarts_converged"])


def fast_ica(
    white_NK: np.ndarray, start_KK: np.ndarray, max_iterations: int, tolerance: float
) -> tuple[np.ndarray, bool]:
    """In place of ``analysis.shared.directions._unmix``: FastICA with scikit-learn's own tolerance."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    from analysis.shared.directions import caught

    model = FastICA(whiten=False, fun="logcosh", w_init=start_KK, max_iter=max_iterations, tol=1e-4)
    converged = not caught(ConvergenceWarning, lambda: model.fit(white_NK))
    return model.components_, converged


if __name__ == "__main__":
    main()
