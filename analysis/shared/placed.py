"""A map and clusters of more rows than one can make them from: some are chosen, the others placed afterwards.

Whether that is as good is measured on the chosen rows, whose clusters are known: map and clusters are made again from
half of their lives, and the rows of the other half placed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from core.artefacts import Result
from core.contracts import UserError
from core.stats import Estimate, few, jackknife

LEAST_LIVES = 4  # two that map and clusters are made from again, two whose rows are placed
LEAST_CLUSTER = 5  # rows
LEAST_ARI = -0.5  # Chacon and Rastrojo 2023


def evenly(rows: int, most: int) -> np.ndarray | None:
    """int64 [most]: so many of the rows 0 to ``rows`` - 1, as far apart as can be; of rows that lie life by life every
    life and every part of it has its share.  None where all are few enough, or most is 0."""
    if not 0 < most < rows:
        return None
    return np.floor((np.arange(most) + 0.5) * rows / most).astype(np.int64)


def share_of_least(min_cluster_size: int, rows: int, of: int) -> int:
    """The smallest cluster among some of all rows, that of all being given."""
    return max(LEAST_CLUSTER, round(min_cluster_size * rows / of))


def check_lives(life_M: np.ndarray, fit_rows: int, lives: str = "lives", leave_out: str = "") -> None:
    """UserError where the chosen rows are of too few lives to measure what placing costs.  lives: what they are;
    leave_out: what else can be done."""
    if (count := len(np.unique(life_M))) < LEAST_LIVES:
        raise UserError(
            f"--fit_rows {fit_rows}: what that costs cannot be measured on {count} {lives}; at least {LEAST_LIVES} "
            f"are needed. Raise it (0: all are fitted){leave_out}"
        )


class Cost(NamedTuple):
    """Adjusted Rand index between the clusters of all chosen rows and those made from half of their lives, by whole
    lives: of rows that were placed, and of those that they were made from (what half of the data costs by itself)."""

    placed: Estimate
    remade: Estimate

    def record(self, result: Result, fitted: int, of: int, row: str = "records", lives: str = "lives") -> None:
        """Scalars ``fitted`` (n: all rows), ``placed_agreement`` and ``remade_agreement``.  row, lives: what they
        are."""
        result.scalar("fitted", fitted, f"{row} that map and clusters are made from", of)
        for name, how, estimate in (
            ("placed_agreement", "placed", self.placed), ("remade_agreement", "they were made from", self.remade)
        ):  # fmt: skip
            unit = f"adjusted Rand index, clusters of half of the {lives} and of all, of {row} {how}"
            result.scalar(name, estimate.value, unit, estimate.n, estimate.interval)


def cost(
    label_M: np.ndarray, life_M: np.ndarray, again: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator
) -> Cost:
    """label: the clusters of the chosen rows; life: of LEAST_LIVES or more (``check_lives``); again: row numbers int64
    [P] -> the labels [M] of all, clusters being made from these."""
    from sklearn.metrics import adjusted_rand_score

    lives = np.unique(life_M)
    half_M = np.isin(life_M, rng.permutation(lives)[: len(lives) // 2])
    again_M = again(np.flatnonzero(half_M))

    def agreement(of_M: np.ndarray) -> Estimate:
        label_P, again_P, life_P = label_M[of_M], again_M[of_M], life_M[of_M]

        def ari(chosen: np.ndarray) -> float:
            return float(adjusted_rand_score(label_P[chosen], again_P[chosen]))

        value, low, high = jackknife(ari, life_P, rng=rng)
        low, high = np.clip([low, high], LEAST_ARI, 1)  # of few lives the jackknife's ends may lie beyond
        return Estimate(float(value), float(low), float(high), len(np.unique(life_P)))

    return Cost(agreement(~half_M), agreement(half_M))


def cost_in_words(result: Result, row: str = "records", flag: str = "--fit_rows") -> str:
    """What placing costs, as ``Cost.record`` has it, in one line.  flag: what made some of them be placed."""
    fitted, placed, remade = (result.scalars[k] for k in ("fitted", "placed_agreement", "remade_agreement"))
    return (
        f"map and clusters are made from {fitted['value']:,.0f} of {fitted['n']:,} {row}, the others placed "
        f"({flag}); made from half of these, the other half placed: ARI {_around(placed)}, of the half itself "
        f"{_around(remade)}{few(placed['n'])}"
    )


def _around(scalar: dict[str, Any]) -> str:
    low, high = scalar["interval"]
    between = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{scalar['value']:.3f}{between}"
