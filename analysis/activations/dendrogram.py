"""HDBSCAN's condensed tree beside the map of the points, as one offline page with a slider over the tree.

HDBSCAN finds clusters at every density at once and then chooses some of them.  The page shows the whole tree: what
there is at any density (lambda, one over distance), what HDBSCAN chose, and which points hang below a branch.
(Campello, Moulavi and Sander 2013; McInnes, Healy and Astels 2017.)

N points, M branches (clusters of the tree); branch 0 is the root, which holds all points.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from core.artefacts import Result
from core.contracts import UserError
from core.figures import SEQUENTIAL
from core.pages import NOISE, NOISE_COLOUR, colour_scale, document, label_colours, packed

FILE = "dendrogram_explorer.html"
GOLDEN = 0.61803399  # of a turn: hues that far apart never come close


@dataclass(frozen=True)
class Tree:
    """A condensed tree by branch and by point.

    A branch is there from ``birth`` (inclusive) to ``death`` (exclusive), where it splits or its last points leave; a
    point is in its branch, and in all above it, at densities below its ``leaves``.
    """

    parent_M: np.ndarray  # int64, the branch above; -1 for the root
    birth_M: np.ndarray  # float64, lambda
    death_M: np.ndarray  # float64, lambda
    size_M: np.ndarray  # int64, points at birth
    branch_N: np.ndarray  # int64, the deepest branch a point is in
    leaves_N: np.ndarray  # float64, lambda at which it leaves that; may be infinite (points that coincide)

    @classmethod
    def of(cls, parent: np.ndarray, child: np.ndarray, lam: np.ndarray, size: np.ndarray, points: int) -> Tree:
        """From the columns of ``condensed_tree_.to_numpy()``: children below ``points`` are points, the rest branches.

        Raises UserError if these are not the tree of so many points.
        """
        parent, child, size = (np.asarray(x, np.int64) for x in (parent, child, size))
        lam = np.asarray(lam, np.float64)
        is_point = child < points
        branches = np.unique(np.r_[parent, child[~is_point]]) - points
        if (
            not len(parent)
            or parent.min() != points
            or not np.array_equal(branches, np.arange(len(branches)))
            or not np.array_equal(np.sort(child[is_point]), np.arange(points))
        ):
            raise UserError(f"the condensed tree is not one of {points} points; cluster again")
        m = len(branches)
        parent_M, birth_M, size_M = np.full(m, -1), np.zeros(m), np.full(m, points)
        below = child[~is_point] - points
        parent_M[below] = parent[~is_point] - points
        birth_M[below], size_M[below] = lam[~is_point], size[~is_point]
        death_M = np.zeros(m)
        np.maximum.at(death_M, parent - points, lam)  # all leave by then; a split is the last that happens to a branch
        branch_N, leaves_N = np.zeros(points, np.int64), np.zeros(points)
        branch_N[child[is_point]], leaves_N[child[is_point]] = parent[is_point] - points, lam[is_point]
        return cls(parent_M, birth_M, death_M, size_M, branch_N, leaves_N)

    def children(self, branch: int) -> list[int]:
        """The branches that this one splits into; none or two."""
        return np.flatnonzero(self.parent_M == branch).tolist()

    def path(self, branch: int) -> list[int]:
        """The branch and all above it, the root last."""
        out = [int(branch)]
        while self.parent_M[out[-1]] >= 0:
            out.append(int(self.parent_M[out[-1]]))
        return out

    def chosen(self, label_N: np.ndarray) -> dict[int, int]:
        """{label: the deepest branch that holds all points of the label}, noise left out."""
        out = {}
        for label in np.unique(label_N[label_N != NOISE]):
            paths = [self.path(b) for b in np.unique(self.branch_N[label_N == label])]
            shared = set(paths[0]).intersection(*paths[1:])
            out[int(label)] = next(b for b in paths[0] if b in shared)
        return out

    def downwards(self) -> list[int]:
        """All branches, each after the one above it (a branch's number is not always larger)."""
        out, waiting = [], [0]
        while waiting:
            branch = waiting.pop()
            out.append(branch)
            waiting += self.children(branch)
        return out


def layout(tree: Tree) -> tuple[np.ndarray, np.ndarray, float]:
    """(left edge, width) float64 [M] of the slot of every branch, the root's from 0 to 1, and the bar of one point.

    A slot has room for a bar of width sqrt(points) and for the slots of the branches below, side by side.
    """
    order = tree.downwards()
    width_M = np.sqrt(tree.size_M)
    for branch in reversed(order):
        width_M[branch] = max(width_M[branch], width_M[tree.children(branch)].sum())
    left_M = np.zeros(len(order))
    for branch in order:
        below = tree.children(branch)
        at = left_M[branch] + (width_M[branch] - width_M[below].sum()) / 2
        for b in below:
            left_M[b], at = at, at + width_M[b]
    return left_M / width_M[0], width_M / width_M[0], float(1 / width_M[0])


def colours(tree: Tree, chosen: dict[int, int]) -> list[str]:
    """'#rrggbb' a branch.  Of two branches the larger keeps the colour of the one they come from, so that colours
    stay as the cut moves; a chosen branch has its label's colour, that of all other figures."""
    of_label = label_colours(list(chosen))
    label_of = {branch: label for label, branch in chosen.items()}
    path_M = np.zeros(len(tree.parent_M), np.int64)  # the number of the line of largest children a branch is on
    paths = 0
    for branch in tree.downwards():
        if branch == 0:
            continue
        largest = max(tree.children(int(tree.parent_M[branch])), key=lambda b: (tree.size_M[b], -b))
        paths += branch != largest
        path_M[branch] = path_M[tree.parent_M[branch]] if branch == largest else paths
    of_path = {int(path_M[branch]): of_label[label] for branch, label in label_of.items()}
    return [of_path.get(int(p)) or _hue(int(p)) for p in path_M]


def _hue(number: int) -> str:
    """One of as many colours as wanted, none grey."""
    rgb = colorsys.hls_to_rgb((0.09 + GOLDEN * number) % 1, 0.45 + 0.14 * (number % 2), 0.55)
    return "#" + "".join(f"{round(255 * v):02x}" for v in rgb)


def span(tree: Tree) -> tuple[float, float]:
    """The lambdas between which something happens: from before the first split to past the last one and nearly all
    points."""
    finite = tree.leaves_N[np.isfinite(tree.leaves_N) & (tree.leaves_N > 0)]
    if not len(finite):
        return 0.5, 2.0  # all points coincide
    splits = tree.birth_M[1:]
    low, high = np.quantile(finite, [0.01, 0.99])
    low, high = min(low, splits.min(initial=np.inf)), max(high, splits.max(initial=0))
    return float(low) * 0.9, float(high) * 1.1


def page(result: Result, title: str = "Clusters by density") -> str:
    """The page of a clustering with arrays ``index`` [N, 2] (episode, t), ``label`` [N], ``umap`` [N, 2],
    ``tree_parent``, ``tree_child``, ``tree_lambda``, ``tree_size`` and, if there, ``features`` [N, F] with their
    names in ``notes["features"]`` and ``fitted`` [M], the rows that are shown, which the tree is of; UserError if the
    tree is not of these points."""
    a = dict(result.arrays)
    if "fitted" in a:
        a |= {name: a[name][a["fitted"]] for name in ("index", "label", "umap", "features") if name in a}
    label_N = np.asarray(a["label"], np.int64)
    tree = Tree.of(a["tree_parent"], a["tree_child"], a["tree_lambda"], a["tree_size"], len(label_N))
    chosen = tree.chosen(label_N)
    left_M, width_M, unit = layout(tree)
    features = np.asarray(a["features"], np.float64) if "features" in a else np.zeros((len(label_N), 0))
    names: Sequence[str] = result.notes.get("features") or [f"feature {i}" for i in range(features.shape[1])]
    low, high = span(tree)
    label_of = {branch: label for label, branch in chosen.items()}
    data: dict[str, Any] = {
        "points": len(label_N),
        "unit": unit,
        "branches": [
            {
                "parent": int(tree.parent_M[b]),
                "birth": float(tree.birth_M[b]),
                "size": int(tree.size_M[b]),
                "left": round(float(left_M[b]), 6),
                "width": round(float(width_M[b]), 6),
                "colour": colour,
                "label": label_of.get(b),
            }
            for b, colour in enumerate(colours(tree, chosen))
        ],
        "death": packed(tree.death_M),
        "branch": packed(tree.branch_N.astype(np.int32)),
        "leaves": packed(tree.leaves_N),
        "label": packed(label_N.astype(np.int32)),
        "label_colours": {str(k): v for k, v in label_colours(label_N).items()},
        "episode": packed(np.asarray(a["index"])[:, 0].astype(np.int32)),
        "t": packed(np.asarray(a["index"])[:, 1].astype(np.int32)),
        "umap": packed(np.asarray(a["umap"], np.float32)),
        "features": packed(features.astype(np.float32)),
        "feature_names": list(names),
        "scale": colour_scale(SEQUENTIAL),
        "low": low,
        "high": high,
        "noise": NOISE_COLOUR,
    }
    body = BODY.replace("TITLE", escape(title))
    return document(title, body, data, Path(__file__).with_suffix(".js"), STYLE)


STYLE = """
#all { display: grid; grid-template-columns: 1fr 1fr; gap: .5rem 1.2rem; max-width: 1400px; margin: 0 auto; }
header, #bar { grid-column: 1 / -1; }
#tree, #scatter { width: 100%; height: 58vh; min-height: 24rem; cursor: pointer; }
#bar { display: grid; grid-template-columns: auto 1fr auto 14rem auto; gap: .2rem .9rem; align-items: center; }
#tables { max-height: 15rem; overflow-y: auto; }
#found { font-size: 1.02rem; font-weight: 600; }
#tip { position: fixed; pointer-events: none; background: #1d2329ee; color: #fff; padding: .25rem .5rem;
  border-radius: 5px; font-size: .82rem; display: none; white-space: pre; z-index: 2; }
@media (max-width: 56rem) { #all, #bar { grid-template-columns: 1fr; } }
"""

BODY = """
<div id="all">
<header><h1>TITLE</h1><p id="found" aria-live="polite"></p></header>
<div id="bar">
<label for="cut">cut</label><input id="cut" type="range" min="0" max="1000" step="1" value="0">
<label for="least">smallest cluster</label><input id="least" type="range" min="0" max="100" step="1" value="0">
<button id="own">HDBSCAN's own choice</button>
<span></span><span class="soft" id="cut_text"></span>
<span></span><span class="soft" id="least_text"></span><span></span>
</div>
<div><canvas id="tree" role="img" aria-label="Condensed tree"></canvas>
<p class="soft">Density grows downwards. The wider a bar, the more points it has (width: square root), and it thins
as points leave every cluster. Click a branch to see its points; again to let go. Right: how many clusters a cut finds,
and the share in none.</p></div>
<div><canvas id="scatter" role="img" aria-label="Map of the points"></canvas>
<p class="soft"><label>colour by <select id="colour"><option value="-1">cluster at the cut</option></select></label>
<span id="range"></span></p></div>
<div id="tables"><table id="clusters"></table></div>
<div><h2 id="who" style="margin-top:0">No branch chosen</h2><table id="facts"></table></div>
</div>
<div id="tip"></div>
"""
