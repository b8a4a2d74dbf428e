"""Saliency maps of many samples: one signed number a pixel in eight bits, written batch by batch.

Whole maps of every quantity; those through the agent only of the value and of actions alone.  What runs through the
world is the difference of the two.  200 samples of 18 quantities are 10 GB as arrays and about 100 MB so.

S samples, T+1 steps, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from core.files import compressed_dataset, hdf5_file, write_rows

FILE = "maps.h5"
LEVEL = 4  # of compression (core.files.write_rows)
LEVELS = 127  # of either sign
AGENT_ONLY = "agent_only"
WHOLE = "whole"


def quantised(map_STHW: np.ndarray, levels: int = LEVELS) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [S, T+1, H, W], step float32 [S]): a sample's map is ``step`` times what is stored, to within half a step,
    which is 1/(2 levels) of its largest number; step 0 where all of it is 0."""
    top_S = np.abs(map_STHW).reshape(len(map_STHW), -1).max(1)
    step_S = (top_S / levels).astype(np.float32)
    by_S = np.where(step_S > 0, step_S, 1)[:, None, None, None]
    return np.rint(map_STHW / by_S).clip(-levels, levels).astype(np.int8), step_S


def of_pixels(grad_STHWC: np.ndarray) -> np.ndarray:
    """One signed number a pixel: the sum over its colours, float32 [S, T+1, H, W]."""
    return grad_STHWC.sum(-1, dtype=np.float32)


def has_path(quantity: str) -> bool:
    """Whether a quantity's map through the agent only is kept beside the whole one: not that of a direction."""
    return ":" not in quantity


class MapsWriter:
    """The file ``maps.h5`` of a run directory, written a batch of samples at a time.  A context manager."""

    def __init__(self, path: Path, quantities: Sequence[str], samples: int, shape: tuple[int, int, int]) -> None:
        """shape: (T+1, H, W)."""
        self.quantities, self._at = tuple(quantities), 0
        self._whole = hdf5_file(path / FILE)
        self._file, self._check = self._whole.__enter__()
        for name in self.quantities:
            for part in (WHOLE, AGENT_ONLY) if has_path(name) else (WHOLE,):
                compressed_dataset(self._file, f"{part}/{name}", np.empty((0, *shape), np.int8), samples, 1)
                self._file.create_dataset(f"{part}_step/{name}", (samples,), np.float32)

    def put(self, part: str, quantity: str, map_STHW: np.ndarray) -> None:
        """A part of a quantity of the present batch."""
        levels, step_S = quantised(map_STHW)
        rows = slice(self._at, self._at + len(levels))
        write_rows(self._file[f"{part}/{quantity}"], self._at, levels, LEVEL)
        self._file[f"{part}_step/{quantity}"][rows] = step_S
        self._check()

    def advance(self, samples: int) -> None:
        """On to the next batch."""
        self._at += samples

    def __enter__(self) -> MapsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._whole.__exit__(kind, error, at)
