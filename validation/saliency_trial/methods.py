"""What saliency says of boxes of pixels.

A method gives a size (the sum of its absolute attributions over a box) and, where it says which way, the change that it
foretells where the box's content goes (minus the sum).  Maps are never kept: only their sums.

N starts, O objects, L layers of boxes (the objects' own first, then random ones), boxes int [L, O, 4] as in objects.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.saliency.attributions import deeplift
from analysis.saliency.frame import Frame
from analysis.shared.gradients import row_gradients
from analysis.shared.quantities import known_quantities
from core.contracts import Agent
from core.progress import bar
from core.trees import Tree, flatten
from validation.paired.course import Actions
from validation.saliency_trial.readings import Reading
from validation.saliency_trial.removal import ROUNDING

GRADIENT, TIMES_INPUT, INTEGRATED = "gradient", "gradient x input", "integrated gradients"
DEEPLIFT, MEAN, BEHIND = "DeepLift", "occlusion by the mean around", "occlusion by what is behind"
RING = 3  # pixels around a box whose mean fills it


class Boxes(NamedTuple):
    """Where to look."""

    of_O: np.ndarray  # int64, the start of each object; ascending
    at_LO4: np.ndarray

    @property
    def area_O(self) -> np.ndarray:
        """Pixels of the objects' own boxes."""
        x0, y0, x1, y1 = self.at_LO4[0].T
        out: np.ndarray = (x1 - x0) * (y1 - y0)
        return out


class Said(NamedTuple):
    """{quantity: float64 [L, O]} each; ``change`` is empty where a method has no sign."""

    size: dict[str, np.ndarray]
    change: dict[str, np.ndarray]


def random_boxes(own_O4: np.ndarray, side: int, layers: int, rng: np.random.Generator) -> np.ndarray:
    """Boxes of the same sizes, anywhere in the frame, [L, O, 4]: the own ones, then ``layers`` random ones."""
    size = own_O4[:, 2:] - own_O4[:, :2]
    corner = rng.integers(0, side - size + 1, (layers, *size.shape))
    return np.concatenate([own_O4[None], np.concatenate([corner, corner + size], 2)])


def box_sums(map_NHW: np.ndarray, of_O: np.ndarray, at_LO4: np.ndarray) -> np.ndarray:
    """Sums of maps over boxes, float64 [L, O], by way of their integral images."""
    whole = np.pad(map_NHW.astype(np.float64), ((0, 0), (1, 0), (1, 0))).cumsum(1).cumsum(2)
    x0, y0, x1, y1 = np.moveaxis(at_LO4, -1, 0)
    out: np.ndarray = whole[of_O, y1, x1] - whole[of_O, y0, x1] - whole[of_O, y1, x0] + whole[of_O, y0, x0]
    return out


def by_gradients(
    read: Reading, agent: Agent, frames_N: Tensor, boxes: Boxes, points: int, batch: int, label: str
) -> dict[str, Said]:
    """The plain gradient, gradient times input, and integrated gradients (Sundararajan et al. 2017, arXiv:1703.01365:
    the mean gradient at ``points`` middles of the way from a black frame, times the frame; 0: left out).

    frames: float [N, H, W, C] in [0, 1].
    """
    names = [GRADIENT, TIMES_INPUT, *([INTEGRATED] if points else [])]
    parts: dict[str, dict[str, list[np.ndarray]]] = {name: {} for name in (*names, TIMES_INPUT + "+", INTEGRATED + "+")}
    shares = [1.0, *((np.arange(points) + 0.5) / points if points else ())]
    with bar(label, len(frames_N), "starts") as progress:
        for first in range(0, len(frames_N), batch):
            x = frames_N[first : first + batch]
            rows = torch.arange(first, first + len(x), device=x.device)
            here = (boxes.of_O >= first) & (boxes.of_O < first + len(x))
            slope: dict[str, Tensor] = {}
            path: dict[str, Tensor] = {}
            for n, share in enumerate(shares):
                scaled = (x * share).detach().requires_grad_()
                said = read(agent, rows, scaled)
                for q, (grad,) in zip(said, row_gradients(list(said.values()), [scaled]), strict=True):
                    if n == 0:
                        slope[q] = grad
                    else:
                        path[q] = path.get(q, torch.zeros_like(grad)) + grad / points
            for q, grad in slope.items():
                maps = {GRADIENT: grad, TIMES_INPUT: grad * x} | ({INTEGRATED: path[q] * x} if points else {})
                for name, whole in maps.items():
                    of, at = boxes.of_O[here] - first, boxes.at_LO4[:, here]
                    total = box_sums(whole.abs().sum(-1).cpu().numpy(), of, at)
                    parts[name].setdefault(q, []).append(total)
                    if name != GRADIENT:
                        parts[name + "+"].setdefault(q, []).append(-box_sums(whole.sum(-1).cpu().numpy(), of, at))
            progress.advance(len(x))

    def joined(name: str) -> dict[str, np.ndarray]:
        return {q: np.concatenate(some, 1) for q, some in parts.get(name, {}).items()}

    return {name: Said(joined(name), joined(name + "+")) for name in names}


def by_deeplift(
    agent: Agent, before: Tree, frames_N: Tensor, boxes: Boxes, actions: Actions, read: Reading
) -> Said:  # fmt: skip
    """DeepLift (Shrikumar et al. 2017, arXiv:1704.02685) from a black frame.  It has a rule for log-probabilities: a
    change of one, times the probability, stands for that of the probability."""
    (field,) = agent.spec.obs
    known = known_quantities(agent.spec)
    rows = torch.arange(len(frames_N), device=frames_N.device)
    with torch.no_grad():
        now = {q: v.double().cpu().numpy() for q, v in read(agent, rows, frames_N).items()}
    chosen = torch.zeros_like(rows)
    nothing = frames_N.new_zeros(len(rows))
    frame = Frame(agent, {field: frames_N}, {field: torch.zeros_like(frames_N)}, flatten(before), nothing, chosen)
    size: dict[str, np.ndarray] = {}
    change: dict[str, np.ndarray] = {}
    steps: dict[int, torch.nn.Module] = {}
    for q in ("value", *(f"prob:{a}" for a in actions)):
        whole = deeplift(frame, known[q.partition(":")[2] or q], steps).maps[field].detach()
        scale = now[q][boxes.of_O] if q != "value" else 1.0
        size[q] = scale * box_sums(whole.abs().sum(-1).cpu().numpy(), *boxes)
        change[q] = -scale * box_sums(whole.sum(-1).cpu().numpy(), *boxes)
    return Said(size, change)


Fill = Callable[[int, int, np.ndarray], np.ndarray]  # (layer, object, frame uint8) -> the frame with its box filled


def mean_around(frame: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The frame with the box filled by the mean of the RING pixels around it (of the whole frame, where the box is all
    there is)."""
    x0, y0, x1, y1 = box
    ring = np.zeros(frame.shape[:2], bool)
    ring[max(0, y0 - RING) : y1 + RING, max(0, x0 - RING) : x1 + RING] = True
    ring[y0:y1, x0:x1] = False
    out = frame.copy()
    out[y0:y1, x0:x1] = frame[ring].mean(0).round() if ring.any() else frame.mean((0, 1)).round()
    return out


def filled(method: str, boxes: Boxes, edited: np.ndarray) -> Fill:
    """How a method of occlusion fills boxes.  A random box has nothing behind it, and is filled with the mean."""

    def fill(layer: int, o: int, frame: np.ndarray) -> np.ndarray:
        box = boxes.at_LO4[layer, o]
        if method == MEAN or layer:
            return mean_around(frame, box)
        x0, y0, x1, y1 = box
        out = frame.copy()
        out[y0:y1, x0:x1] = edited[o, y0:y1, x0:x1]
        return out

    return fill


@torch.no_grad()
def by_occlusion(
    read: Reading, agent: Agent, frames: np.ndarray, boxes: Boxes, fill: Fill, layers: int, batch: int, label: str,
    device: torch.device,
) -> Said:  # fmt: skip
    """What changes when a box is filled.  frames: uint8 [N, H, W, C]; layers: of boxes that are tried."""
    pairs = [(layer, o) for layer in range(layers) for o in range(len(boxes.of_O))]
    parts: list[dict[str, Tensor]] = []
    for rows in torch.arange(len(frames)).split(batch):
        parts.append(read(agent, rows.to(device), as_floats(frames[rows.numpy()], device)))
    now = {q: torch.cat([part[q] for part in parts]).double().cpu().numpy() for q in parts[0]}
    found: dict[str, list[np.ndarray]] = {q: [] for q in now}
    with bar(label, len(pairs), "boxes") as progress:
        for first in range(0, len(pairs), batch):
            some = pairs[first : first + batch]
            of = boxes.of_O[[o for _, o in some]]
            shown = np.stack([fill(layer, o, frames[n]) for (layer, o), n in zip(some, of, strict=True)])
            for q, value in read(agent, torch.from_numpy(of).to(device), as_floats(shown, device)).items():
                change = value.double().cpu().numpy() - now[q][of]
                found[q].append(np.where(np.abs(change) < ROUNDING, 0, change))
            progress.advance(len(some))
    changes = {q: np.concatenate(some).reshape(layers, -1) for q, some in found.items()}
    return Said({q: np.abs(x) for q, x in changes.items()}, changes)


def as_floats(frames: np.ndarray, device: torch.device) -> Tensor:
    """uint8 -> float in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(frames)).to(device).float() / 255
