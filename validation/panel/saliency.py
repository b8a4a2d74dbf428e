"""The maps of a saliency run, whichever way it kept them, as the panel shows them.

S samples, Q quantities, T+1 steps, H rows, W columns, K directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from analysis.saliency import maps as kept
from core import artefacts
from core.artefacts import Result
from core.figures import are_pictures
from core.files import dataset_of
from core.replay import quantised


@dataclass
class Saliency:
    """Maps of some samples.  ``part`` is kept.WHOLE or kept.AGENT_ONLY."""

    result: Result
    maps: Mapping[str, Any]  # part/quantity -> int8 [S, T+1, H, W]
    steps: Mapping[str, Any]  # part/quantity -> float32 [S]
    file: Any = None
    row_of: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.row_of = {int(i): s for s, i in enumerate(self.result.arrays["sample_ids"])}

    def some(self, ids: Sequence[int]) -> Saliency:
        """That of these samples alone, as far as they have one."""
        out = replace(self)
        out.row_of = {i: self.row_of[i] for i in ids if i in self.row_of}
        return out

    @property
    def ids(self) -> Sequence[int]:
        return list(self.row_of)

    @property
    def quantities(self) -> dict[str, str]:
        """{name: unit}."""
        units: dict[str, str] = self.result.notes["units"]
        return units

    @property
    def parts(self) -> list[str]:
        """The maps of a sample, in the order of its block."""
        return [f"{part}/{q}" for part in (kept.WHOLE, kept.AGENT_ONLY) for q in self.quantities
                if f"{part}/{q}" in self.maps]  # fmt: skip

    def facts(self, shades: int) -> dict[str, Any]:
        """What the page is told.  ``scale``: what one shade of a sample's map is worth, for every part."""
        mine = list(self.row_of.values())
        by_part = {part: np.asarray(self.steps[part], np.float64)[mine] * kept.LEVELS / shades for part in self.parts}
        rows = self.result.tables["saliency"]
        of = {(row["sample"], row["quantity"]): row for row in rows}
        return {
            "ids": self.ids, "quantities": self.quantities, "target": self.result.notes["target_step"],
            "steps": int(self.result.notes["target_step"]) + 1, "parts": self.parts, "shades": shades,
            "shape": list(next(iter(self.maps.values())).shape[2:]) if self.parts else [0, 0],
            "scale": {part: [float(f"{x:.4g}") for x in scale] for part, scale in by_part.items()},
            "y": {q: [_short(of[(i, q)]["y"]) if (i, q) in of else None for i in self.ids] for q in self.quantities},
            "norm": {q: [[_short(of[(i, q)][f"gradient_norm{p}"]) for p in ("", "_agent_only", "_through_world")]
                         if (i, q) in of else None for i in self.ids] for q in self.quantities},
            "means": {name: s for name, s in self.result.scalars.items() if name.startswith("through_world_")},
        }  # fmt: skip

    def maps_of(self, sample: int, shades: int) -> bytes:
        """int8 [parts, target + 1, H, W] of a sample, in shades: after the target step nothing has a gradient."""
        s, last = self.row_of[sample], int(self.result.notes["target_step"]) + 1
        each = [
            np.rint(np.asarray(self.maps[part][s][:last], np.float32) * shades / kept.LEVELS) for part in self.parts
        ]
        return np.stack(each).astype(np.int8).tobytes() if each else b""

    def gradients(self, kind: str) -> tuple[np.ndarray, list[tuple[float, float]]] | None:
        """(int16 [Q, S, T+1, K], (lowest, step) of every quantity): gradients with respect to the directions of this
        kind; None where they were not asked for."""
        found = [self.result.arrays.get(f"grad_{kind}_{q}") for q in self.quantities]
        if not found or any(x is None for x in found):
            return None
        mine = list(self.row_of.values())
        each = [quantised(x[mine]) for x in found if x is not None]
        return np.stack([e[0] for e in each]), [(e[1], e[2]) for e in each]

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def _short(x: Any) -> float | None:
    return None if x is None or not np.isfinite(x) else float(f"{x:.4g}")


def open_saliency(path: Path) -> Saliency:
    """The maps of a run, from maps.h5 or from its arrays.  UserError where a file is not what the manifest says."""
    result = Result.load(path)
    if result.notes.get("combined"):
        return Saliency(result, {}, {})
    if kept.FILE in artefacts.read_manifest(path)["files"]:
        file = h5py.File(artefacts.check_file(path, kept.FILE), "r")
        names = [f"{part}/{q}" for part in (kept.WHOLE, kept.AGENT_ONLY) for q in result.notes["units"]]
        names = [name for name in names if name in file]
        at = path / kept.FILE
        steps = {name: dataset_of(file, name.replace("/", "_step/", 1), at)[:] for name in names}
        return Saliency(result, {name: dataset_of(file, name, at) for name in names}, steps, file)
    maps, steps = {}, {}
    field_ = next((f for f in result.notes["fields"] if are_pictures(result.arrays[f], 2)), None)
    for q in result.notes["units"] if field_ is not None else ():
        for part, suffix in ((kept.WHOLE, ""), (kept.AGENT_ONLY, "_agent_only")):
            grad = result.arrays.get(f"grad_{field_}_{q}{suffix}")
            if grad is not None and (part == kept.WHOLE or kept.has_path(q)):
                maps[f"{part}/{q}"], steps[f"{part}/{q}"] = kept.quantised(kept.of_pixels(grad))
    return Saliency(result, maps, steps)
