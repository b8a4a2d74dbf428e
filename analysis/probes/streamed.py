"""Linear probes of inputs that are never in memory: sums over folds, fits, and a second pass that scores them.

N rows, F features, S columns of targets, G folds, U units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from analysis.probes.inputs import EPISODE, Input
from analysis.probes.labels import Labels, Rule, Tally, discriminant, posterior
from analysis.shared.probe_fits import FoldSums, MlpOptions, Sums, mlp_predict
from core.progress import bar

BLOCK = 8192  # rows worked on together


class Split(NamedTuple):
    """Which rows are held out together."""

    name: str  # unit, or step
    fold_N: np.ndarray
    strict: bool  # penalties are chosen inside the training folds

    @property
    def folds(self) -> int:
        return int(self.fold_N.max()) + 1


def blocks(given: Input, step_E: Mapping[int, np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
    """(rows, features float32 [M, F]) of about BLOCK rows, in order."""
    first = stop = 0
    parts: list[np.ndarray] = []
    for e, step in step_E.items():
        parts.append(given.of(e, slice(stop, stop + len(step))))
        stop += len(step)
        if stop - first >= BLOCK:
            yield slice(first, stop), np.concatenate(parts)
            first, parts = stop, []
    if parts:
        yield slice(first, stop), np.concatenate(parts)


def centre_of(given: Input, step_E: Mapping[int, np.ndarray]) -> np.ndarray:
    """About the mean of an input, float64 [F], from some whole episodes."""
    place, parts = 0, []
    every = max(1, len(step_E) // 32)
    for i, (e, step) in enumerate(step_E.items()):
        if i % every == 0:
            parts.append(given.of(e, slice(place, place + len(step))))
        place += len(step)
    out: np.ndarray = np.concatenate(parts).mean(0, dtype=np.float64)
    return out


def sums_along(
    given: Input, step_E: Mapping[int, np.ndarray], centre_F: np.ndarray, y_NS: np.ndarray, splits: Sequence[Split],
    columns: Sequence[int],
) -> tuple[np.ndarray, list[tuple[FoldSums, Sums]]]:  # fmt: skip
    """(which features ever change, the sums of every split of these), from one pass over the input; ``columns``: how
    many of the targets, the first, each split is about.

    Of a picture or a one-hot vector half may never change, and fits take the cube of the rest."""
    width = given.width
    mean_S = y_NS.mean(0, dtype=np.float64)
    n = [np.zeros(s.folds) for s in splits]
    sums = [np.zeros((s.folds, width)) for s in splits]
    gram = [[np.zeros((width, width)) for _ in range(s.folds)] for s in splits]
    of_y = [np.zeros((s.folds, c)) for s, c in zip(splits, columns, strict=True)]
    cross = [np.zeros((s.folds, width, c)) for s, c in zip(splits, columns, strict=True)]
    square = [np.zeros((s.folds, c)) for s, c in zip(splits, columns, strict=True)]
    low_F, high_F = np.full(width, np.inf), np.full(width, -np.inf)
    for rows, x_MF in blocks(given, step_E):
        low_F, high_F = np.minimum(low_F, x_MF.min(0)), np.maximum(high_F, x_MF.max(0))
        x_MF = x_MF - centre_F  # float64: of rare features, sums of float32 products would be mostly rounding
        y_MS = y_NS[rows] - mean_S
        for i, (split, count) in enumerate(zip(splits, columns, strict=True)):
            fold_M = split.fold_N[rows]
            for g in np.unique(fold_M):
                x, y = x_MF[fold_M == g], y_MS[fold_M == g, :count]
                n[i][g] += len(x)
                sums[i][g] += x.sum(0)
                gram[i][g] += x.T @ x
                of_y[i][g] += y.sum(0)
                cross[i][g] += x.T @ y
                square[i][g] += (y**2).sum(0)
    live = np.flatnonzero(high_F > low_F)
    out = []
    for i, c in enumerate(columns):
        gram_GFF = np.empty((len(gram[i]), len(live), len(live)))
        for g in range(len(gram_GFF)):
            gram_GFF[g] = gram[i][g][np.ix_(live, live)]
            gram[i][g] = np.empty(0)  # of wide inputs these are most of what is held
        own = Sums(mean_S[:c], of_y[i], np.stack([g[live] for g in cross[i]]), square[i])
        out.append((FoldSums(n[i], sums[i][:, live], gram_GFF, keep=False), own))
    return live, out


def linear(
    given: Input, step_E: Mapping[int, np.ndarray], labels: Labels, splits: Sequence[Split], real: int,
    unit_N: np.ndarray, units: int,
) -> list[Tally]:  # fmt: skip
    """What linear probes of an input say, split by split.  real: how many labels, the first, the splits after the first
    one are about."""
    counts = [len(labels.labels)] + [real] * (len(splits) - 1)
    columns = [labels.labels[c - 1].columns.stop for c in counts]
    both = zip(counts, columns, strict=True)
    some = [labels._replace(labels=labels.labels[:c], y_NS=labels.y_NS[:, :k]) for c, k in both]
    tallies = [Tally(part, unit_N, units) for part in some]
    if given.name == EPISODE:
        return [by_life(part, tally, split, step_E) for part, tally, split in zip(some, tallies, splits, strict=True)]
    centre_F = centre_of(given, step_E)
    fits, rules = [], []
    live, found = sums_along(given, step_E, centre_F, labels.y_NS, splits, columns)
    for split, part, (system, sums) in zip(splits, some, found, strict=True):
        own = system.fits_of(sums) if split.strict else system.easy_fits_of(sums)
        fits.append([(w_FS, a_S + sums.mean_S) for w_FS, a_S in own])
        rules.append([rules_of(part, system, sums, g, *own[g]) for g in range(split.folds)])
    for rows, x_MF in blocks(given, step_E):
        x_MF = x_MF[:, live] - centre_F[live]
        for split, tally, own_fits, own_rules in zip(splits, tallies, fits, rules, strict=True):
            fold_M = split.fold_N[rows]
            for g in np.unique(fold_M):
                here = np.flatnonzero(fold_M == g)
                w_FS, a_S = own_fits[g]
                tally.add(here + rows.start, x_MF[here] @ w_FS + a_S, own_rules[g])
    return tallies


def rules_of(
    labels: Labels, system: FoldSums, sums: Sums, g: int, w_FS: np.ndarray, a_S: np.ndarray
) -> dict[int, tuple[Rule, Rule]]:
    """How the classes of every label are told from the readings of the fit without fold g."""
    train = [i for i in range(len(system.n_G)) if i != g]
    n, total_F = system.n_G[train].sum(), system.sum_GF[train].sum(0)
    gram_FF = system.gram_GFF[train].sum(0)
    out = {}
    for i, label in enumerate(labels.labels):
        if not label.values:
            continue
        c = label.columns
        mean_C = sums.mean_S[c]
        class_n = sums.sum_GS[train][:, c].sum(0) + mean_C * n
        class_FC = sums.cross_GFS[train][:, :, c].sum(0) + total_F[:, None] * mean_C
        if label.kind == "binary":
            class_n = np.r_[n - class_n, class_n]
            class_FC = np.concatenate([total_F[:, None] - class_FC, class_FC], 1)
        class_n = np.where(class_n < 0.5, 0.0, class_n)
        rule = discriminant(w_FS[:, c], a_S[c] + mean_C, n, total_F / n, gram_FF, class_n, class_FC.T)
        out[i] = rule, rule
    return out


def by_life(labels: Labels, tally: Tally, split: Split, step_E: Mapping[int, np.ndarray]) -> Tally:
    """What the episode alone says: the mean of the training rows of the same one, else of all."""
    life_N = np.repeat(np.arange(len(step_E)), [len(t) for t in step_E.values()])
    lives = len(step_E)
    for g in range(split.folds):
        train, here = split.fold_N != g, np.flatnonzero(split.fold_N == g)
        count_L = np.bincount(life_N[train], minlength=lives)
        sum_LS = np.stack([np.bincount(life_N[train], y, lives) for y in labels.y_NS[train].T], 1)
        mean_S = labels.y_NS[train].mean(0)
        said_LS = np.where(count_L[:, None] > 0, sum_LS / np.maximum(count_L, 1)[:, None], mean_S)
        tally.add(here, said_LS[life_N[here]], shares(labels, np.flatnonzero(train)))
    return tally


def shares(labels: Labels, train: np.ndarray) -> dict[int, tuple[Rule, Rule]]:
    """How classes are told from readings that are probabilities."""
    return {
        i: posterior(np.bincount(labels.class_NL[train, i], minlength=len(x.values)) / len(train), x.kind == "binary")
        for i, x in enumerate(labels.labels)
        if x.values
    }


def networks(
    given: Input, step_E: Mapping[int, np.ndarray], labels: Labels, fold_N: np.ndarray, unit_N: np.ndarray, units: int,
    rows: np.ndarray, options: MlpOptions, seed: int, device: str = "cpu",
) -> Tally:  # fmt: skip
    """What networks say of some rows; one an input and fold, all targets together."""
    tally = Tally(labels.of(rows), unit_N[rows], units)
    x_MF = np.empty((len(rows), given.width), np.float32)
    for some, x in blocks(given, step_E):
        at = np.searchsorted(rows, [some.start, some.stop])
        x_MF[at[0] : at[1]] = x[rows[at[0] : at[1]] - some.start]
    fold_M, part = fold_N[rows], labels.of(rows)
    said_MS = mlp_predict(x_MF, part.y_NS.astype(np.float64), fold_M, unit_N[rows], options, seed, True, device)
    for g in range(int(fold_N.max()) + 1):
        here = np.flatnonzero(fold_M == g)
        tally.add(here, said_MS[here], shares(part, np.flatnonzero(fold_M != g)))
    return tally


def tallies_of(
    inputs: Sequence[Input], step_E: Mapping[int, np.ndarray], labels: Labels, splits: Sequence[Split], real: int,
    unit_N: np.ndarray, units: int,
) -> dict[str, list[Tally]]:  # fmt: skip
    """``linear`` of every input."""
    out = {}
    with bar("reading from", len(inputs), "inputs") as progress:
        for given in inputs:
            out[given.name] = linear(given, step_E, labels, splits, real, unit_N, units)
            progress.advance()
    return out
