"""Clusters over the phases of lives, against labels rotated in time, and what deaths end in.

N clustered rows, E lives, L labels, B phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from analysis.lives.phase_config import LifePhaseConfig
from analysis.lives.recorded import Clusters, worlds_of
from analysis.shared.clusters import record_share_from_time, rotated_rows, time_bins, time_eta2
from analysis.shared.units import stretches
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.pages import label_name
from core.stats import ALPHA, benjamini_hochberg, bootstrap_mean, eta_squared, few, share_of, shares

LEAST_LIVES = 2


class Moments(NamedTuple):
    """Clustered rows of the lives that are long enough, a life's rows together and in order."""

    episode_N: np.ndarray  # int64
    unit_N: np.ndarray  # int64, what is resampled: the life or its world
    t_N: np.ndarray  # int64, ticks since birth
    phase_N: np.ndarray  # float64, 0 at birth, 1 at the end
    label_N: np.ndarray  # int64


def moments_of(
    store: RolloutStore, clusters: Clusters, min_lifespan: int, unit: Literal["lives", "worlds"] = "lives"
) -> Moments:
    """UserError if fewer than two lives are long enough, or they are of fewer than two worlds where these are the
    unit."""
    episode_N, t_N = clusters.index_N2.T
    keep = np.flatnonzero(store.steps[episode_N] >= min_lifespan)
    keep = keep[np.lexsort((t_N[keep], episode_N[keep]))]
    if (lives := len(np.unique(episode_N[keep]))) < LEAST_LIVES:
        raise UserError(
            f"{lives} of {len(store)} lives have clustered rows and last {min_lifespan} ticks; at least "
            f"{LEAST_LIVES} are needed: set a smaller --min_lifespan (the longest life has {store.steps.max()}), or "
            "extract more"
        )
    episode_N, t_N = episode_N[keep], t_N[keep]
    unit_N = episode_N if unit == "lives" else worlds_of(store)[episode_N]
    if len(np.unique(unit_N)) < LEAST_LIVES or unit_N.min() < 0:
        raise UserError(f"--unit {unit}: the lives are not of at least {LEAST_LIVES} known worlds; use --unit lives")
    return Moments(episode_N, unit_N, t_N, (t_N + 0.5) / store.steps[episode_N], clusters.label_N[keep])


def shares_by_phase(m: Moments, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(labels [L], share [L, B] of a phase's rows, its low and high [L, B], rows [B]).

    A phase without rows has NaN.  Whole units count.
    """
    labels, of_N = np.unique(m.label_N, return_inverse=True)
    units, unit_N = np.unique(m.unit_N, return_inverse=True)
    bin_N = np.minimum((m.phase_N * bins).astype(int), bins - 1)
    count_ULB = np.zeros((len(units), len(labels), bins))
    np.add.at(count_ULB, (unit_N, of_N, bin_N), 1)
    rows_ULB = np.broadcast_to(count_ULB.sum(1, keepdims=True), count_ULB.shape)
    found = shares(count_ULB.reshape(len(units), -1), rows_ULB.reshape(len(units), -1))
    share_LB, low_LB, high_LB = (x.reshape(len(labels), bins) for x in found[:3])
    return labels, share_LB, low_LB, high_LB, count_ULB.sum((0, 1)).astype(int)


def phase_rows(m: Moments, labels: np.ndarray, *, rng: np.random.Generator, rotations: int) -> list[dict[str, Any]]:
    """A row a label: eta squared of its membership by phase, what the same gives for rotated labels (mean and 97.5th
    percentile), the share p of rotations that reach it (counting itself), and q over labels."""
    of_N = np.searchsorted(labels, m.label_N)
    bin_N = time_bins(m.phase_N)
    eta2_L = eta2_of(of_N, bin_N, len(labels))
    floor_RL = np.array(
        [eta2_of(of_N[rotated_rows(m.episode_N, rng, m.unit_N)], bin_N, len(labels)) for _ in range(rotations)]
    )
    p_L = (1 + (floor_RL >= eta2_L).sum(0)) / (1 + rotations)
    q_L = benjamini_hochberg(p_L)
    rows = []
    for i, label in enumerate(labels):
        own = of_N == i
        rows.append(
            {
                "label": int(label),
                "rows": int(own.sum()),
                "lives": len(np.unique(m.episode_N[own])),
                "mean_phase": float(m.phase_N[own].mean()),
                "eta2_phase": float(eta2_L[i]),
                "eta2_rotated": float(floor_RL[:, i].mean()),
                "eta2_rotated_97_5": float(np.quantile(floor_RL[:, i], 0.975)),
                "p": float(p_L[i]),
                "q": float(q_L[i]),
                "eta2_tick": time_eta2(own, m.t_N),
            }
        )
    return rows


def eta2_of(of_N: np.ndarray, bin_N: np.ndarray, labels: int) -> np.ndarray:
    """``core.stats.eta_squared`` of every label, float64 [labels]; 0 for one that all rows have."""
    bins = int(bin_N.max()) + 1
    count_LB = np.bincount(of_N * bins + bin_N, minlength=labels * bins).reshape(labels, bins)
    return np.nan_to_num(eta_squared(count_LB, count_LB.sum(0)))


def ends(m: Moments, died_E: np.ndarray, labels: np.ndarray) -> list[dict[str, Any]]:
    """A row a label: the share of deaths whose last clustered row has it, with interval; its share of all rows of the
    same lives, each counting once, which is what is expected if the end is a moment like any other; p, and q over
    labels.

    p is exact for labels that are rotated within their lives, those of a unit by the same share of their lengths
    (``rotated_ends``), so that it takes the same units as independent as the interval; two-sided, twice the smaller
    tail.  died_E: bool, by episode number.  Lives with one clustered row say nothing of this and are left out; [] if no
    others ended in death.
    """
    first_L, length_L = stretches(m.episode_N)
    lives = [(a, a + n) for a, n in zip(first_L, length_L, strict=True) if died_E[m.episode_N[a]] and n > 1]
    if not lives:
        return []
    unit_E, rows = m.unit_N[[a for a, _ in lives]], []
    _, of_E = np.unique(unit_E, return_inverse=True)
    for label in labels:
        own = m.label_N == label
        last_E = np.array([own[b - 1] for _, b in lives], float)
        share_E = np.array([own[a:b].mean() for a, b in lives])
        last = share_of(last_E, unit_E)
        rows.append(
            {
                "label": int(label),
                "deaths": len(lives), "units": last.n,
                "share_of_ends": last.value, "low": last.low, "high": last.high,
                "share_of_lives": float(share_E.mean()),
                "p": sum_p(int(last_E.sum()), rotated_ends([own[a:b] for a, b in lives], of_E)),
            }
        )  # fmt: skip
    for row, q in zip(rows, benjamini_hochberg(np.array([row["p"] for row in rows])), strict=True):
        row["q"] = float(q)
    return rows


def rotated_ends(own_E: Sequence[np.ndarray], unit_E: np.ndarray) -> list[np.ndarray]:
    """The chance of 0, 1, ... lives of each unit that end in a label, where all labels of the unit are rotated by one
    random share of their lives' lengths.

    own_E: bool [rows] of each life, whether its rows have the label; unit_E: 0 to U-1.  A life alone in its unit is a
    coin with its own share of rows.
    """
    out = []
    for u in range(int(unit_E.max()) + 1):
        mine = [own for own, unit in zip(own_E, unit_E, strict=True) if unit == u]
        ends = np.unique(np.concatenate([np.arange(len(own) + 1) / len(own) for own in mine]))
        middle, chance = (ends[1:] + ends[:-1]) / 2, np.diff(ends)  # between two ends nobody's last row changes
        count = sum(own[(middle * len(own)).astype(np.int64)].astype(np.int64) for own in mine)
        out.append(np.bincount(count, chance, len(mine) + 1))
    return out


def sum_p(total: int, chances: Sequence[np.ndarray]) -> float:
    """Two-sided p (twice the smaller tail) of a sum of independent counts, each with its chances of 0, 1, ..."""
    mass = np.ones(1)
    for chance in chances:
        mass = np.convolve(mass, chance)
    return float(min(1.0, 2 * min(mass[: total + 1].sum(), mass[total:].sum())))


def analyse(m: Moments, steps_E: np.ndarray, died_E: np.ndarray, config: LifePhaseConfig) -> Result:
    """Arrays ``label`` [L], ``share, share_low, share_high`` [L, B], ``rows`` [B]; tables ``clusters``, ``ends`` and
    ``phases`` (the arrays as rows); scalars of the lives and of the normalised mutual information of label
    and phase, and of label and tick."""
    rng = np.random.default_rng(config.seed)
    lives = np.unique(m.episode_N)
    labels, share_LB, low_LB, high_LB, rows_B = shares_by_phase(m, config.n_bins)
    result = Result(
        arrays={"label": labels, "share": share_LB, "share_low": low_LB, "share_high": high_LB, "rows": rows_B},
        notes={
            "bins": config.n_bins, "min_lifespan": config.min_lifespan, "lives": len(lives),
            "lives_too_short": int((steps_E < config.min_lifespan).sum()), "rows": len(m.label_N), "unit": config.unit,
            "intervals": f"95 %, {config.unit} as units" + (
                "; agents of one world meet and compete, so where one world gives many lives they are narrower than "
                "they should be (--unit worlds)" if config.unit == "lives" else ""
            ),
        },
    )  # fmt: skip
    unit_E = m.unit_N[np.searchsorted(m.episode_N, lives)]
    died = share_of(died_E[lives], unit_E)
    result.scalar("died", died.value, "share of lives", died.n, died.interval)
    gap_E = np.array([steps_E[e] - 1 - m.t_N[m.episode_N == e].max() for e in lives], float)
    gap = bootstrap_mean(gap_E, unit_E, rng=rng, resamples=config.resamples)
    result.scalar("last_row_before_end", gap.value, "ticks", gap.n, gap.interval)
    for prefix, time_N in (("phase_", m.phase_N), ("tick_", m.t_N)):
        units = len(np.unique(m.unit_N))
        record_share_from_time(
            result, prefix, m.label_N, time_N, m.episode_N, episodes=units, rng=rng, together_N=m.unit_N
        )
    result.tables["clusters"] = phase_rows(m, labels, rng=rng, rotations=config.rotations)
    result.tables["ends"] = ends(m, died_E, labels)
    result.tables["phases"] = [
        {
            "label": int(label), "from": b / config.n_bins, "to": (b + 1) / config.n_bins,
            "share": float(share_LB[i, b]), "low": float(low_LB[i, b]), "high": float(high_LB[i, b]),
            "rows": int(rows_B[b]),
            "lives": len(lives), "units": len(np.unique(m.unit_N)),
        }
        for i, label in enumerate(labels)
        for b in range(config.n_bins)
    ]  # fmt: skip
    return result


def words(result: Result) -> list[str]:
    """What was found, a sentence a line."""
    notes, s = result.notes, result.scalars
    phase, floor = s["phase_share_from_time"], s["phase_share_from_time_floor"]
    tick = s["tick_share_from_time"]
    above = [row["label"] for row in result.tables["clusters"] if row["q"] <= ALPHA]
    out = [
        f"{notes['lives']} lives of at least {notes['min_lifespan']} ticks ({notes['lives_too_short']} shorter ones "
        f"left out), {notes['rows']:,} clustered rows; {s['died']['value']:.0%} of the lives ended in death",
        f"normalised mutual information of label and phase of life: {phase['value']:.3f} (of rotated labels "
        f"{floor['value']:.3f}, 95 % of them {floor['interval'][0]:.3f} to {floor['interval'][1]:.3f}); of label and "
        f"tick: {tick['value']:.3f}",
        f"{len(above)} of {len(result.tables['clusters'])} labels follow phase more than their rotations do "
        f"(q ≤ {ALPHA}): " + (", ".join(map(label_name, above)) or "none"),
    ]
    sure = [row for row in result.tables["ends"] if row["q"] <= ALPHA]
    if not result.tables["ends"]:
        out.append("no life with more than one clustered row ended in death: nothing is said of ends")
    for row in sure:
        out.append(
            f"{label_name(row['label'])}: {row['share_of_ends']:.0%} [{row['low']:.0%}, {row['high']:.0%}] of "
            f"{row['deaths']} deaths end in it, {row['share_of_lives']:.1%} of the same lives (q = {row['q']:.2g}; "
            f"interval and q of {row['units']} {notes['unit']}{few(row['units'])})"
        )
    if result.tables["ends"] and not sure:
        out.append(
            f"no label is more or less frequent at the end of {result.tables['ends'][0]['deaths']} deaths than in "
            f"the lives (q > {ALPHA})"
        )
    return out
