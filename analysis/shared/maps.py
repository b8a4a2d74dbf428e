"""Two- and few-dimensional maps of points: principal components, UMAP, t-SNE.

(UMAP: McInnes, Healy and Melville 2018, arXiv:1802.03426.  t-SNE: van der Maaten and Hinton 2008.)
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from core.contracts import UserError

Embedding = Literal["pca", "umap", "tsne"]
LEAST_MAPPED = 100  # points, of a umap or t-SNE
EXACT_ROWS = 50_000  # whose neighbours are looked up by brute force: half a minute, and no luck in it
FEWEST_MAPPED = 50  # rows of a umap by itself
PLACED_AT_ONCE = 4000  # rows that are put on a finished map: beyond 10,000 umap moves them a third as often


def check_mappable(points: int, kind: Embedding, remedy: str = "use --embedding pca") -> None:
    """UserError if there are too few points for a map of this kind; remedy: what the stage has."""
    if kind != "pca" and points < LEAST_MAPPED:
        raise UserError(f"{points} points are too few for {kind}, which needs at least {LEAST_MAPPED}; {remedy}")


Place = Callable[[np.ndarray], np.ndarray]


class Map(NamedTuple):
    """Points on a map, float64 [N, D], and what puts further points on it as it is (None where that cannot be)."""

    map_ND: np.ndarray
    place: Place | None


def embed(x_NF: np.ndarray, kind: Embedding, dimensions: int, seed: int) -> np.ndarray:
    """A map of the points, float64 [N, dimensions].

    pca: the first coordinates themselves (x must be ordered by variance).  umap, tsne: non-linear, on
    one thread so that a seed gives the same map on the same machine (another machine may differ: keep
    coordinates as data).  Raises UserError if there are too few points.
    """
    return mapped(x_NF, kind, dimensions, seed).map_ND


def mapped(x_NF: np.ndarray, kind: Embedding, dimensions: int, seed: int, *, more: bool = False) -> Map:
    """``embed``.  more: further points will be put on the map (``check_placeable``).  A umap made so has looked up its
    neighbours in another way, and may be a little another map."""
    check_mappable(len(x_NF), kind)

    def widened(x_NF: np.ndarray) -> np.ndarray:
        """What varies in one direction only is drawn on a line."""
        return np.pad(x_NF, ((0, 0), (0, max(0, dimensions - x_NF.shape[1]))))

    x_NF = widened(x_NF)
    if kind == "pca":
        first: Place = lambda x_NF: np.asarray(widened(x_NF)[:, :dimensions], np.float64)  # noqa: E731
        return Map(first(x_NF), first)
    if kind == "tsne":
        from sklearn.manifold import TSNE

        tsne = TSNE(dimensions, init="pca", perplexity=30, random_state=seed, n_jobs=1)
        return Map(np.asarray(tsne.fit_transform(np.asarray(x_NF, np.float32)), np.float64), None)
    if not more:
        (map_ND,) = umaps(x_NF, (dimensions,), neighbours=15, min_dist=0.1, seed=seed)
        return Map(map_ND.astype(np.float64), None)
    model = _umap(dimensions, 15, 0.1, seed)
    map_ND = model.fit_transform(np.asarray(x_NF, np.float32))
    return Map(map_ND.astype(np.float64), lambda x_NF: _put(model, widened(x_NF)).astype(np.float64))


def check_placeable(kind: Embedding) -> None:
    """UserError for a kind of map on which further points cannot be put."""
    if kind == "tsne":
        raise UserError(
            "a finished t-SNE takes no further points: use --embedding umap or pca, raise --fit_rows, or leave the "
            "others out (--most_states as large as --fit_rows)"
        )


def umaps(
    h_NH: np.ndarray, dimensions: Sequence[int], *, neighbours: int, min_dist: float, seed: int,
    fitted_M: np.ndarray | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """UMAPs float32 [N, D] of the same rows, one for each D; the neighbours are looked up once.

    fitted_M: rows that the map is made from; the others are put on the finished map (none: it is made from all).

    Started from principal components.  Laid out on one thread, so that a seed gives the same map on the same machine
    (another machine may differ: keep coordinates as data).  Raises UserError for too few rows.
    """
    fitted_M = np.arange(len(h_NH)) if fitted_M is None else np.asarray(fitted_M)
    least = max(FEWEST_MAPPED, neighbours + 1)
    if len(fitted_M) < least:
        raise UserError(
            f"{len(fitted_M)} rows are too few for a map of {neighbours} neighbours (--umap-neighbors); at least "
            f"{least} are needed"
        )
    h_NH = np.asarray(h_NH, np.float32)
    other_P = np.setdiff1d(np.arange(len(h_NH)), fitted_M)
    # Who are given their neighbours cannot look up those of others.
    known = {} if len(other_P) else {"precomputed_knn": _neighbours(h_NH, neighbours, seed)}
    out = []
    for size in dimensions:
        model = _umap(size, neighbours, min_dist, seed, **known)
        map_ND = np.empty((len(h_NH), size), np.float32)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="precomputed_knn.2. .knn_search_index. is not an NNDescent")
            map_ND[fitted_M] = model.fit_transform(h_NH[fitted_M])
        if len(other_P):
            map_ND[other_P] = _put(model, h_NH[other_P])
        out.append(map_ND)
    return out


def _umap(size: int, neighbours: int, min_dist: float, seed: int, **known: Any) -> Any:
    with warnings.catch_warnings():
        # umap announces at import that its TensorFlow variant is not there; it is not used here.
        warnings.filterwarnings("ignore", message="Tensorflow not installed", category=ImportWarning)
        try:
            from umap import UMAP
        except RuntimeError as error:
            if "no locator available" not in str(error):  # numba's words
                raise
            raise UserError("umap keeps what it compiles, and can write neither beside its own files nor in ~/.cache: "
                            "set NUMBA_CACHE_DIR to a directory that you can write") from error  # fmt: skip
    _keep_compiled()
    return UMAP(
        n_components=size, n_neighbors=neighbours, min_dist=min_dist, init="pca", random_state=seed,
        transform_seed=seed, n_jobs=1, **known,
    )  # fmt: skip


KEPT = {  # module of umap: functions that it compiles anew in every process
    "umap_": ("smooth_knn_dist", "compute_membership_strengths"),
    "layouts": ("_nb_optimize_layout_euclidean_single_epoch",),
    "utils": ("fast_knn_indices", "submatrix"),
    "distances": ("euclidean",),
}


@functools.cache
def _keep_compiled() -> None:
    """What umap compiles serves other processes too, as what pynndescent compiles does; else each is at it for ten
    seconds.  (numba keeps it beside umap's files or, where it may not write there, in ~/.cache.)"""
    for name, functions in KEPT.items():
        module = importlib.import_module(f"umap.{name}")
        for function in functions:
            with contextlib.suppress(AttributeError, RuntimeError):  # another version has it not; nowhere to keep it
                getattr(module, function).enable_caching()


def _put(model: Any, x_PF: np.ndarray) -> np.ndarray:
    """Rows on a finished umap, float32 [P, D]."""
    parts = np.array_split(np.asarray(x_PF, np.float32), max(1, -(-len(x_PF) // PLACED_AT_ONCE)))
    return np.concatenate([model.transform(part) if len(part) else np.zeros((0, model.n_components)) for part in parts])


def _neighbours(h_NH: np.ndarray, neighbours: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(the nearest rows of every row, itself first; how far they are), [N, neighbours] each."""
    if len(h_NH) <= EXACT_ROWS:
        from sklearn.neighbors import NearestNeighbors

        distance_Nk, near_Nk = NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(h_NH).kneighbors(h_NH)
        return near_Nk, distance_Nk
    from umap.umap_ import nearest_neighbors

    # By descent, which draws its candidates a thread: more than one would not repeat.
    random = np.random.RandomState(seed)
    near_Nk, distance_Nk, _ = nearest_neighbors(
        h_NH, neighbours, "euclidean", {}, False, random, low_memory=False, n_jobs=1
    )
    return near_Nk, distance_Nk
