"""Targets as columns of numbers, and what is right about readings of them.

A number is read as it is; of two values the larger is 1; a name of several (a class) is a column of 0 and 1 for each
value.  Numbers are scored by R^2, the others also by accuracy (beside the share of the commonest) and by balanced
accuracy, the mean over classes of the share that is found (chance: 1 / classes).

N rows, S columns, L labels, C classes, U units, R weightings of units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from core.contracts import UserError

MOST_CLASSES = 64
Kind = Literal["number", "binary", "classes"]


class Label(NamedTuple):
    """A target."""

    name: str
    kind: Kind
    values: tuple[float, ...]  # of the classes, in order; (): a number
    columns: slice

    @property
    def metric(self) -> str:
        """What it is compared by."""
        return "r2" if self.kind == "number" else "balanced_accuracy"

    @property
    def chance(self) -> float:
        """That metric of what says nothing."""
        return 1 / len(self.values) if self.values else 0.0


class Labels(NamedTuple):
    """All targets of the same rows: float32 [N, S], numbers z-scored."""

    labels: tuple[Label, ...]
    y_NS: np.ndarray
    class_NL: np.ndarray  # int16, the place of each row's class among ``values``; 0 of numbers

    def taken(self, donor_N: np.ndarray, mark: str) -> Labels:
        """The same with the targets of other rows."""
        named = tuple(label._replace(name=label.name + mark) for label in self.labels)
        return Labels(named, self.y_NS[donor_N], self.class_NL[donor_N])

    def of(self, rows: np.ndarray) -> Labels:
        """Some of the rows."""
        return self._replace(y_NS=self.y_NS[rows], class_NL=self.class_NL[rows])


def kind_of_values(y_N: np.ndarray, is_name: bool) -> Kind:
    """How a target that varies is read."""
    return "binary" if len(np.unique(y_N)) == 2 else "classes" if is_name else "number"


def labels_of(quantities: Mapping[str, np.ndarray], classes: Sequence[str]) -> Labels:
    """Targets that vary, float [N] each without NaN; classes: those that are names."""
    labels, columns, codes, first = [], [], [], 0
    for name, y_N in quantities.items():
        kind = kind_of_values(y_N, name in classes)
        values: tuple[float, ...] = ()
        code_N = np.zeros(len(y_N), np.int16)
        if kind == "number":
            own_NC = ((y_N - y_N.mean()) / y_N.std())[:, None]
        else:
            each, code_N = np.unique(y_N, return_inverse=True)
            if len(each) > MOST_CLASSES:
                raise UserError(f"--classes {name}: {len(each)} values are too many for names; {MOST_CLASSES} at most")
            values = tuple(float(v) for v in each)
            own_NC = code_N[:, None] == np.arange(len(each))
            own_NC = own_NC[:, 1:] if kind == "binary" else own_NC
        labels.append(Label(name, kind, values, slice(first, first + own_NC.shape[1])))
        first += own_NC.shape[1]
        columns.append(own_NC.astype(np.float32))
        codes.append(code_N.astype(np.int16))
    return Labels(tuple(labels), np.concatenate(columns, 1), np.stack(codes, 1))


def joined(parts: Sequence[Labels]) -> Labels:
    """Several sets of targets of the same rows as one."""
    labels, first = [], 0
    for part in parts:
        labels += [x._replace(columns=slice(x.columns.start + first, x.columns.stop + first)) for x in part.labels]
        first += part.y_NS.shape[1]
    return Labels(
        tuple(labels), np.concatenate([p.y_NS for p in parts], 1), np.concatenate([p.class_NL for p in parts], 1)
    )


class Rule(NamedTuple):
    """How classes are told from readings r [C']: the largest of ``r @ turn + offset``."""

    turn_CC: np.ndarray
    equal_C: np.ndarray  # offset where classes count alike
    frequent_C: np.ndarray  # offset that makes use of how frequent they are


def discriminant(
    w_FC: np.ndarray, a_C: np.ndarray, n: float, mean_F: np.ndarray, gram_FF: np.ndarray, class_n: np.ndarray,
    class_sum_CF: np.ndarray,
) -> Rule:  # fmt: skip
    """Discriminant analysis of the readings ``x @ w + a`` of regressions on classes, from sums over the training rows:
    the nearest class mean in units of the spread within classes (Hastie, Buja and Tibshirani 1995, "Penalized
    discriminant analysis")."""
    there = class_n > 0
    share_C = class_n / class_n.sum()
    mean_CC = np.where(there[:, None], class_sum_CF @ w_FC / np.maximum(class_n, 1)[:, None] + a_C, 0.0)
    total_CC = w_FC.T @ (gram_FF @ w_FC) / n - np.outer(mean_F @ w_FC, mean_F @ w_FC)
    away_CC = mean_CC - (mean_F @ w_FC + a_C)
    within_CC = total_CC - (share_C[:, None, None] * away_CC[:, :, None] * away_CC[:, None, :]).sum(0)
    least = 1e-6 * max(float(np.trace(total_CC)), 1e-12)
    value_C, vector_CC = np.linalg.eigh((within_CC + within_CC.T) / 2)
    turn_CC = (vector_CC / np.maximum(value_C, least)) @ vector_CC.T @ mean_CC.T
    equal_C = np.where(there, -0.5 * (mean_CC * turn_CC.T).sum(1), -np.inf)
    return Rule(turn_CC, equal_C, equal_C + np.log(np.maximum(share_C, 1e-300)))


def posterior(share_C: np.ndarray, single: bool) -> tuple[Rule, Rule]:
    """(for balanced accuracy, for accuracy): readings that are probabilities of the classes (``single``: of the second
    of two), weighed by how rare the classes are, or as they are."""
    out = []
    for weight_C in (1 / np.maximum(share_C, 1e-9), np.ones_like(share_C)):
        turn_CC = np.diag(weight_C)
        offset_C = np.where(share_C > 0, 0.0, -np.inf)
        if single:
            turn_CC = np.array([[-weight_C[0], weight_C[1]]])
            offset_C = offset_C + np.array([weight_C[0], 0.0])
        out.append(Rule(turn_CC, offset_C, offset_C))
    return out[0], out[1]


class Tally:
    """Errors and hits of readings, summed over whole units as rows come in."""

    def __init__(self, labels: Labels, unit_N: np.ndarray, units: int) -> None:
        self.labels, self.unit_N, self.units = labels, unit_N, units
        self.error_US = np.zeros((units, labels.y_NS.shape[1]))
        self.hit_UC = {i: np.zeros((2, units, len(x.values))) for i, x in enumerate(labels.labels) if x.values}

    def add(self, rows: np.ndarray, said_MS: np.ndarray, rules: Mapping[int, tuple[Rule, Rule]]) -> None:
        """Readings of some rows; rules: of the labels that are classes, (for balanced accuracy, for accuracy)."""
        unit_M, there = self.unit_N[rows], self.labels
        order = np.argsort(unit_M, kind="stable")
        first = np.flatnonzero(np.diff(unit_M[order], prepend=-1))
        square_MS = (said_MS - there.y_NS[rows]) ** 2
        self.error_US[unit_M[order][first]] += np.add.reduceat(square_MS[order], first)
        for i, (equal, frequent) in rules.items():
            label, code_M = there.labels[i], there.class_NL[rows, i]
            own_MC, classes = said_MS[:, label.columns], len(label.values)
            for k, (turn, offset) in enumerate(
                ((equal.turn_CC, equal.equal_C), (frequent.turn_CC, frequent.frequent_C))
            ):
                right_M = (own_MC @ turn + offset).argmax(1) == code_M
                at = unit_M[right_M].astype(np.int64) * classes + code_M[right_M]
                self.hit_UC[i][k] += np.bincount(at, minlength=self.units * classes).reshape(self.units, classes)


class Known(NamedTuple):
    """What the targets are in each unit: for scores of any reading of them."""

    labels: tuple[Label, ...]
    n_U: np.ndarray
    sum_US: np.ndarray
    square_US: np.ndarray
    class_UC: dict[int, np.ndarray]

    @classmethod
    def of(cls, labels: Labels, unit_N: np.ndarray, units: int) -> Known:
        y_NS = labels.y_NS
        sums = [np.stack([np.bincount(unit_N, col, units) for col in z.T], 1) for z in (y_NS, y_NS**2)]
        counts = {
            i: np.bincount(unit_N * len(x.values) + labels.class_NL[:, i], minlength=units * len(x.values)).reshape(
                units, -1
            )
            for i, x in enumerate(labels.labels) if x.values
        }  # fmt: skip
        return cls(labels.labels, np.bincount(unit_N, minlength=units).astype(float), sums[0], sums[1], counts)

    def spread_R(self, i: int, weight_RU: np.ndarray) -> np.ndarray:
        """Squared distance of label i from its mean, [R]."""
        c = self.labels[i].columns
        total, square = weight_RU @ self.sum_US[:, c], weight_RU @ self.square_US[:, c]
        out: np.ndarray = (square - total**2 / (weight_RU @ self.n_U)[:, None]).sum(1)
        return out

    def r2(self, tally: Tally, i: int, weight_RU: np.ndarray) -> np.ndarray:
        """R^2 of label i (of classes: of all their columns together), [R]; NaN where it does not vary."""
        c = self.labels[i].columns
        error_R, spread_R = (weight_RU @ tally.error_US[:, c]).sum(1), self.spread_R(i, weight_RU)
        square_R = (weight_RU @ self.square_US[:, c]).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(spread_R > 1e-9 * np.maximum(square_R, 1e-300), 1 - error_R / spread_R, np.nan)

    def balanced(self, tally: Tally, i: int, weight_RU: np.ndarray) -> np.ndarray:
        """Balanced accuracy of label i, over the classes that are there, [R]."""
        hit_RC, there_RC = weight_RU @ tally.hit_UC[i][0], weight_RU @ self.class_UC[i]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nanmean(np.where(there_RC > 0, hit_RC / there_RC, np.nan), 1)

    def accuracy(self, tally: Tally, i: int, weight_RU: np.ndarray) -> np.ndarray:
        """Share of rows whose class is told, [R]."""
        out: np.ndarray = (weight_RU @ tally.hit_UC[i][1]).sum(1) / (weight_RU @ self.n_U)
        return out

    def majority(self, i: int) -> float:
        """Share of the commonest class of label i."""
        return float(self.class_UC[i].sum(0).max() / self.n_U.sum())

    def score(self, tally: Tally, i: int, weight_RU: np.ndarray) -> np.ndarray:
        """The metric that label i is compared by, [R]."""
        own = self.r2 if self.labels[i].kind == "number" else self.balanced
        return own(tally, i, weight_RU)

    def could_gain(self, i: int, varying: int) -> tuple[int, float]:
        """(units that could show a better reading of label i, what its score gains if all of them do): those of the
        class that the fewest have, or in which a number varies (``varying``)."""
        if self.labels[i].kind == "number":
            return varying, 1.0
        units_C = (self.class_UC[i] > 0).sum(0)
        return int(units_C[units_C > 0].min()), 1.0 / int((units_C > 0).sum())

    def ahead_U(self, one: Tally, other: Tally, i: int) -> np.ndarray:
        """What each unit adds to the difference of two scores of label i: their sum is that difference."""
        if self.labels[i].kind == "number":
            c = self.labels[i].columns
            spread = self.spread_R(i, np.ones((1, len(self.n_U))))[0]
            out: np.ndarray = (other.error_US[:, c] - one.error_US[:, c]).sum(1) / spread
            return out
        there_C = np.maximum(self.class_UC[i].sum(0), 1)
        classes = (self.class_UC[i].sum(0) > 0).sum()
        share: np.ndarray = ((one.hit_UC[i][0] - other.hit_UC[i][0]) / there_C).sum(1) / classes
        return share
