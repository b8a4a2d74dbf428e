"""How well every quantity is read from the states, beside its nulls and controls, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from analysis.probes.baselines import time_features
from analysis.probes.config import ProbesConfig
from analysis.probes.rows import Rows
from analysis.shared.probe_fits import (
    FoldedRidge,
    auroc,
    exchanged_units,
    folds_of,
    mlp_predict,
    partial_out,
    r2_of,
    spread_of,
    told_by_few,
    unit_sums,
)
from analysis.shared.units import shared_by
from core.artefacts import Result, finite
from core.contracts import UserError
from core.progress import bar
from core.stats import (
    ALPHA,
    LOGIT,
    LOST,
    PLAIN,
    band_of,
    benjamini_hochberg,
    failure_not_met,
    gain_not_met,
    jackknifed,
    least_permutations,
    least_units,
    left_out,
    mean_p,
    never_alone,
    smallest_p,
)

CONSTANTS = 20  # random targets of each control
TIME_ITSELF = 0.999  # R^2 of time alone from which on a quantity is time
LEAST_VARYING = 6  # units in which a quantity must vary: with fewer no test can tell anything


def null_of(probe: FoldedRidge, y_N: np.ndarray, donor_NS: np.ndarray) -> np.ndarray:
    """R^2 [S] of the target exchanged in each of S ways; NaN where an exchange leaves it without spread."""
    y_NS = y_N[donor_NS]
    spread_S = spread_of(y_NS)
    return 1 - np.divide(probe.errors(y_NS), spread_S, out=np.full(len(spread_S), np.nan), where=spread_S > 0)


def p_of(value: float, null_S: np.ndarray) -> float:
    """One-sided; an exchange whose R^2 is undefined counts as reached."""
    return float((1 + (~(null_S < value)).sum()) / (1 + len(null_S)))


class Scores:
    """R^2 of several readings of the same targets, of all units and of all but each one."""

    def __init__(self, unit_N: np.ndarray, resamples: int, rng: np.random.Generator) -> None:
        self.of_N = np.unique(unit_N, return_inverse=True)[1]
        self.n = int(self.of_N.max()) + 1
        self.weight_GE, self.resamples, self.rng = left_out(self.n, rng), resamples, rng
        self.error_EK: dict[str, np.ndarray] = {}
        self.r2_GK: dict[str, np.ndarray] = {}

    def add(self, name: str, predicted_NK: np.ndarray, y_NK: np.ndarray) -> None:
        sums_E4K = unit_sums(predicted_NK, y_NK, self.of_N)
        self.error_EK[name] = sums_E4K[:, 0]
        self.r2_GK[name] = r2_of(np.tensordot(self.weight_GE, sums_E4K, 1))

    def less(self, name: str, a: str, b: str) -> None:
        """R^2 of reading a less that of b, as a reading of its own."""
        self.r2_GK[name] = self.r2_GK[a] - self.r2_GK[b]

    def interval(self, name: str, k: int, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(value, low, high) of target k."""
        link = LOST if name in self.error_EK else PLAIN  # a difference of two may be of either sign
        return jackknifed(self.r2_GK[name][:, k], rng=self.rng, link=link, level=level, draws=self.resamples)

    def cells(self, name: str, k: int) -> dict[str, Any]:
        """``interval`` as table cells."""
        value, low, high = self.interval(name, k)
        return {
            name: finite(value),
            f"{name}_low": finite(low),
            f"{name}_high": finite(high),
        }


def probe(rows: Rows, targets: Sequence[str], given: Sequence[str], unit: str, config: ProbesConfig) -> Result:
    """Tables ``targets`` (one row each, also of those that never vary), ``controls`` and, where there are other agents,
    ``agents``; arrays of what was read.

    Targets that have a value at the same rows are scored together, each on those rows alone.
    """
    if not any(_varies(rows.quantities[t]) for t in targets):
        raise UserError(f"none of the {len(targets)} quantities ever changes, so there is nothing to read; record more")
    sets: dict[bytes, list[str]] = {}
    for t in targets:
        sets.setdefault(np.isfinite(rows.quantities[t]).tobytes(), []).append(t)
    about = {"given": list(given), "smallest": config.smallest, "unit": unit, "rows": len(rows.x_NF),
             "units": len(np.unique(rows.groups[unit])), "left_out": dict(rows.left_out),
             "baselines": list(rows.baselines), "previous": config.previous,
             "last_reached": last_reached(rows.index_N2[:, 1], rows.groups[unit])}  # fmt: skip
    result = Result(notes=about)
    result.notes["shared"] = shared_by(rows.groups, unit)
    parts = []
    for names in sets.values():
        on_N = np.isfinite(rows.quantities[names[0]])
        least = max(config.folds, least_units(ALPHA, "permutation"))
        enough = len(np.unique(rows.groups[unit][on_N])) >= least
        varying = [t for t in names if enough and _varies(rows.quantities[t])]
        parts.append(_Part(names, on_N, varying, _scored(rows.of(on_N), names, varying, given, unit, config)))
    _assemble(result, parts, targets, rows, config)
    return result


def last_reached(step_N: np.ndarray, unit_N: np.ndarray) -> int | None:
    """The last step that LEAST_VARYING units have, where fewer have later ones and these are more than twice as late;
    else None."""
    last_U = np.sort([step_N[unit_N == unit].max() for unit in np.unique(unit_N)])
    if len(last_U) < LEAST_VARYING or last_U[-1] <= 2 * last_U[-LEAST_VARYING]:
        return None
    return int(last_U[-LEAST_VARYING])


def _varies(y_N: np.ndarray) -> bool:
    known_N = y_N[np.isfinite(y_N)]
    return len(known_N) > 0 and bool(np.ptp(known_N) > 0)


class _Part(NamedTuple):
    """Targets that are known at the same rows, and what was found of them there."""

    names: Sequence[str]
    on_N: np.ndarray
    varying: Sequence[str]
    found: Result


def _assemble(
    result: Result, parts: Sequence[_Part], targets: Sequence[str], rows: Rows, config: ProbesConfig
) -> None:  # fmt: skip
    """The tables of all parts in one, with q-values and verdicts over all; arrays a column a varying target."""
    by_target = {row["target"]: row for part in parts for row in part.found.tables["targets"]}
    table = [by_target[t] for t in targets]
    agents = [row for part in parts for row in part.found.tables.get("agents", ())]
    for some in (table, agents):
        for name in {key.removesuffix("_p") for row in some for key in row if key.endswith("_p")}:
            at = [row for row in some if f"{name}_p" in row]
            enough = [row.get("units_varying", LEAST_VARYING) >= LEAST_VARYING for row in at]
            p = [row[f"{name}_p"] if yes and row[f"{name}_p"] is not None else np.nan
                 for row, yes in zip(at, enough, strict=True)]  # fmt: skip
            for row, q in zip(at, benjamini_hochberg(np.array(p, np.float64)), strict=True):
                row[f"{name}_q"] = finite(q)
    for row in table:
        if row["verdict"] == "":
            row["verdict"] = verdict(row, bool(result.notes["given"]), config.smallest)
            row |= {c: added_verdict(row, c, config.smallest) for c, (name, _) in ADDED.items() if name in row}
    result.tables["targets"] = table
    result.notes["resolution"] = resolution(table, config.shuffles)
    if agents:
        result.tables["agents"] = agents
    largest = max((part for part in parts if part.varying), key=lambda part: int(part.on_N.sum()))
    result.tables["controls"] = largest.found.tables["controls"]
    varying = [t for part in parts for t in part.varying]
    if len(parts) == 1:
        result.arrays |= parts[0].found.arrays
        result.notes["directions"] = varying
    else:
        done = [part for part in parts if part.varying]
        for name in done[0].found.arrays:
            if name.startswith("predicted_"):
                whole_NK = np.full((len(rows.x_NF), len(varying)), np.nan, np.float32)
                for part in done:
                    columns = [varying.index(t) for t in part.varying]
                    whole_NK[np.ix_(part.on_N, np.array(columns))] = part.found.arrays[name]
                result.arrays[name] = whole_NK
            elif name.startswith("null_"):
                result.arrays[name] = np.concatenate([part.found.arrays[name] for part in done], 1)
            elif name.startswith("direction_"):
                result.arrays[name] = np.concatenate([part.found.arrays[name] for part in done])
        result.notes["directions"] = varying
    result.arrays["index"] = rows.index_N2


def resolution(table: Sequence[Mapping[str, Any]], shuffles: int) -> list[str]:
    """What ``verdict`` asks of every target, exchanged targets and the gain over time alone, where no target could be
    shown by itself, a sentence each: so many targets are tested that so few exchanges or units cannot tell one."""
    said: list[str] = []
    for name, what, kind, drawn in (
        ("linear", "quantities (against exchanged ones)", "permutation", shuffles),
        ("with_time_minus_time", "quantities (against time alone)", "mean", None),
    ):
        of = [row for row in table if row.get(f"{name}_q") is not None]
        if not of:
            continue
        alone, units = ALPHA / len(of), max(row["n"] for row in of)
        need = [f"--shuffles {least_permutations(alone)}"] if drawn is not None and 1 / (1 + drawn) > alone else []
        need += [f"{least_units(alone, kind)} units"] if smallest_p(units, kind) > alone else []
        said += never_alone(len(of), what, smallest_p(units, kind, drawn), ALPHA, need, "--targets")
    return said


def _scored(
    rows: Rows, targets: Sequence[str], varying: Sequence[str], given: Sequence[str], unit: str, config: ProbesConfig
) -> Result:  # fmt: skip
    """Of targets that have a value at every row, all but q-values and verdicts."""
    result = Result()
    if not varying:
        result.tables["targets"] = [_unvaried(t, rows.quantities[t]) for t in targets]
        return result
    rng = np.random.default_rng(config.seed)
    unit_N, life_N = rows.groups[unit], rows.groups["life"]
    fold_N = folds_of(unit_N, config.folds, rng)
    scores = Scores(unit_N, config.resamples, rng)
    y_NK = np.stack([rows.quantities[t] for t in varying], 1)
    states = FoldedRidge(rows.x_NF, fold_N)
    step_N = rows.index_N2[:, 1]
    donor_NS = np.stack([exchanged_units(life_N, unit_N, rng, step_N) for _ in range(config.shuffles)], 1)
    predicted = {"linear": states.predict(y_NK)}
    null = {"linear": np.stack([null_of(states, y_N, donor_NS) for y_N in y_NK.T], 1)}
    if config.mlp:
        both_NK = np.concatenate([y_NK, y_NK[donor_NS[:, 0]]], 1)
        read_NK = mlp_predict(rows.x_NF, both_NK, fold_N, unit_N, config.net, config.seed, device=config.device)
        predicted["mlp"] = read_NK[:, : len(varying)]
        scores.add("mlp_shuffled", read_NK[:, len(varying) :], both_NK[:, len(varying) :])
    time_NF = time_features(rows.time_N)
    predicted["time"] = FoldedRidge(time_NF, fold_N).predict(y_NK)
    if rows.observation_NF is not None:
        predicted["observation"] = FoldedRidge(rows.observation_NF, fold_N).predict(y_NK)
    for name, baseline_NF in rows.baselines.items():
        predicted[name] = FoldedRidge(baseline_NF, fold_N).predict(y_NK)
    for name, said_NK in predicted.items():
        scores.add(name, said_NK, y_NK)
        if name != "linear":
            ends = ("mlp", "linear") if name == "mlp" else ("linear", name)
            scores.less(f"{ends[0]}_minus_{ends[1]}", *ends)
    with_time = FoldedRidge(np.concatenate([rows.x_NF, time_NF], 1), fold_N)
    scores.add("with_time", with_time.predict(y_NK), y_NK)
    scores.less("with_time_minus_time", "with_time", "time")
    if "all" in rows.baselines:
        together_NF = np.concatenate([rows.x_NF, rows.baselines["all"]], 1)
        predicted["everything"] = FoldedRidge(together_NF, fold_N).predict(y_NK)
        scores.add("everything", predicted["everything"], y_NK)
        scores.less("everything_minus_all", "everything", "all")
    mediated = mediate(rows, varying, given, fold_N, donor_NS, scores, rng) if given else None
    if mediated is not None:
        null["partial"] = mediated
    result.tables["targets"] = _table(rows, targets, varying, predicted, null, scores)
    if mediated is not None:
        for row in result.tables["targets"]:
            row["given_by_few"] = _by_few(rows, [g for g in given if g != row["target"]], unit)
    result.tables["controls"] = _controls(states, rows, rng)
    if rows.agents:
        result.tables["agents"] = _agents(rows, varying, y_NK, predicted["linear"], fold_N, unit_N, config)
    _directions(result, states, y_NK)
    result.arrays |= {f"null_{name}": null_SK for name, null_SK in null.items()} | {"fold": fold_N}
    result.arrays |= {f"predicted_{name}": x_NK.astype(np.float32) for name, x_NK in predicted.items()}
    return result


def _agents(
    rows: Rows, varying: Sequence[str], y_NK: np.ndarray, recorded_NK: np.ndarray, fold_N: np.ndarray,
    unit_N: np.ndarray, config: ProbesConfig,
) -> list[dict[str, Any]]:  # fmt: skip
    """R^2 of every target from the states of other agents along the same steps, and what the recorded one has more."""
    scores = Scores(unit_N, config.resamples, np.random.default_rng(config.seed))
    scores.add("recorded", recorded_NK, y_NK)
    out, flips = [], np.random.default_rng(0)
    for name, h_NH in rows.agents.items():
        scores.add("r2", FoldedRidge(h_NH, fold_N).predict(y_NK), y_NK)
        scores.less("recorded_minus_this", "recorded", "r2")
        p_K = np.atleast_1d(mean_p(scores.error_EK["r2"] - scores.error_EK["recorded"], rng=flips))
        for k, target in enumerate(varying):
            units = varying_units(y_NK[:, k], scores.of_N)
            row = {"agent": name, "target": target, "units_varying": units, **scores.cells("r2", k)}
            row |= {**scores.cells("recorded_minus_this", k), "recorded_minus_this_p": finite(p_K[k])}
            out.append({**row, "recorded_minus_this_q": None, "n": scores.n, "rows": len(y_NK)})
    return out


def _unvaried(target: str, y_N: np.ndarray) -> dict[str, Any]:
    """The row of a target that never varies, or has too few units with a value to be read."""
    spread = {"mean": finite(y_N.mean()), "std": finite(y_N.std())} if len(y_N) else {"mean": None, "std": None}
    says = "never there" if not len(y_N) else "constant" if np.ptp(y_N) == 0 else "too rare to tell"
    return {"target": target, "kind": kind_of(y_N), **spread, "units_varying": 0, "verdict": says, "rows": len(y_N)}


def mediate(
    rows: Rows, varying: Sequence[str], given: Sequence[str], fold_N: np.ndarray, donor_NS: np.ndarray, scores: Scores,
    rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """Adds the readings ``given`` (R^2 of the confounders alone), ``partial`` (of what they leave of the target, from
    what they leave of the states) and ``unique`` (what the states add, in R^2 of the whole target) to ``scores``.

    A target that is itself a confounder is given the others.  Returns the exchanged ``partial`` [S, K].
    """
    y_NK = np.stack([rows.quantities[t] for t in varying], 1)
    given_NK, partial_NK, left_NK = (np.full(y_NK.shape, np.nan) for _ in range(3))
    null_SK = np.full((donor_NS.shape[1], len(varying)), np.nan)
    sets: dict[tuple[str, ...], list[int]] = {}
    for k, target in enumerate(varying):
        sets.setdefault(tuple(g for g in given if g != target), []).append(k)
    with bar("partialling out", len(sets), "sets") as progress:
        for others, these in sets.items():
            progress.advance()
            if not others:
                continue
            z_NC = np.stack([rows.quantities[g] for g in others], 1)
            x_NF, y_NS = partial_out(z_NC, fold_N, rng, rows.x_NF, y_NK[:, these])
            states = FoldedRidge(x_NF, fold_N)
            given_NK[:, these], left_NK[:, these] = y_NK[:, these] - y_NS, y_NS
            partial_NK[:, these] = states.predict(y_NS)
            null_SK[:, these] = np.stack([null_of(states, y_N, donor_NS) for y_N in y_NS.T], 1)
    scores.add("given", given_NK, y_NK)
    scores.add("partial", partial_NK, left_NK)
    scores.add("both", given_NK + partial_NK, y_NK)
    scores.less("unique", "both", "given")
    return null_SK


def _by_few(rows: Rows, given: Sequence[str], unit: str) -> str:
    """The confounders that hardly vary within lives or units that are too few to tell what they do."""
    if not given:
        return ""
    z_NC = np.stack([rows.quantities[g] for g in given], 1)
    few_C = np.any([told_by_few(z_NC, rows.groups[name]) for name in {"life", unit}], 0)
    return " ".join(g for g, few in zip(given, few_C, strict=True) if few)


def _table(
    rows: Rows, targets: Sequence[str], varying: Sequence[str], predicted: Mapping[str, np.ndarray],
    null: Mapping[str, np.ndarray], scores: Scores,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row a target; q-values and verdicts are left for ``_assemble``."""
    p = {n: np.array([p_of(scores.r2_GK[n][0, k], null_SK[:, k]) if np.isfinite(scores.r2_GK[n][0, k]) else np.nan
                      for k in range(len(varying))]) for n, null_SK in null.items()}  # fmt: skip
    flips = np.random.default_rng(0)
    for name, (a, b) in {n: n.split("_minus_") for n in scores.r2_GK if "_minus_" in n}.items():
        p[name] = np.atleast_1d(mean_p(scores.error_EK[b] - scores.error_EK[a], rng=flips))
    out: list[dict[str, Any]] = []
    for target in targets:
        y_N = rows.quantities[target]
        if target not in varying:
            out.append(_unvaried(target, y_N))
            continue
        row: dict[str, Any] = {"target": target, "kind": kind_of(y_N)}
        row |= {"mean": float(y_N.mean()), "std": float(y_N.std())}
        out.append(row)
        k = varying.index(target)
        row["units_varying"] = varying_units(y_N, scores.of_N)
        for name in scores.r2_GK:
            if name == "mlp_shuffled":
                row[name] = finite(scores.r2_GK[name][0, k])
            elif name != "both":
                row |= scores.cells(name, k)
            if name in p:
                row |= {f"{name}_p": finite(p[name][k]), f"{name}_q": None}
        for name, null_SK in null.items():
            if np.isfinite(null_SK[:, k]).any():
                row |= {f"{name}_shuffled": float(np.nanmean(null_SK[:, k])),
                        f"{name}_shuffled_high": float(np.nanquantile(null_SK[:, k], 0.95))}  # fmt: skip
        if row["kind"] == "binary":
            row |= _areas(predicted, k, y_N == y_N.max(), scores, bool(rows.baselines))
        for name in ("partial", *(name for name, _ in ADDED.values())):
            if name in scores.r2_GK:
                value, low, high = map(float, scores.interval(name, k, 0.9))
                high = gain_not_met(value, high, row["units_varying"], 0.9)
                row |= {f"{name}_low_90": finite(low), f"{name}_high_90": finite(high)}
        row |= {"verdict": "", "n": scores.n, "rows": len(y_N)}
    return out


def _areas(
    predicted: Mapping[str, np.ndarray], k: int, positive_N: np.ndarray, scores: Scores, against: bool
) -> dict[str, Any]:
    """Areas under the ROC curve of a 0/1 target; against: also of the baselines, and how much the states' is larger."""
    out: dict[str, Any] = {}
    linear_G = None
    fewest = min(len(np.unique(scores.of_N[some_N])) for some_N in (positive_N, ~positive_N))  # units of either kind
    for name in predicted if against else ("linear", "mlp"):
        if name not in predicted:
            continue
        area_G = auroc(predicted[name][:, k], positive_N, scores.of_N, scores.weight_GE)
        linear_G = area_G if name == "linear" else linear_G
        readings = [(f"auroc_{name}", area_G, LOGIT)]
        if against and name not in ("linear", "mlp") and linear_G is not None:
            readings.append((f"auroc_linear_minus_{name}", linear_G - area_G, PLAIN))
        for cell, value_G, link in readings:
            area, low, high = map(float, jackknifed(value_G, rng=scores.rng, link=link, draws=scores.resamples))
            if link is LOGIT:
                low = failure_not_met(low, fewest)
            out |= {cell: finite(area), f"{cell}_low": finite(low), f"{cell}_high": finite(high)}
    return out


def kind_of(y_N: np.ndarray) -> str:
    """constant, binary or number."""
    return {1: "constant", 2: "binary"}.get(len(np.unique(y_N)), "number")


def varying_units(y_N: np.ndarray, of_N: np.ndarray) -> int:
    """In how many units the target is not what it is most often."""
    values, counts = np.unique(y_N, return_counts=True)
    return len(np.unique(of_N[y_N != values[counts.argmax()]]))


def verdict(row: Mapping[str, Any], mediated: bool, smallest: float) -> str:
    """What a row says, in words.

    Beyond what is given (``partial``, R^2 of what the confounders leave): read where the 95 % interval lies above the
    smallest size of interest and exchanged targets do not reach it; not read where the 90 % interval, with room for
    units that were not met (``core.stats.gain_not_met``), lies below that size; else open, and so where too few units
    tell what a confounder does (``given_by_few``).
    """
    if row["units_varying"] < LEAST_VARYING:
        return "too rare to tell"
    if row["linear_low"] is None or row["linear_low"] <= 0:
        return "not shown to be read"
    if row["time"] is not None and row["time"] > TIME_ITSELF:
        return "read; it is time itself"
    # Exchanges keep what a target is at every step, but not that a life ends when the target says so.
    if any(row[f"{name}_q"] is None or row[f"{name}_q"] > ALPHA for name in ("linear", "with_time_minus_time")):
        return "not shown to be more than time alone predicts"
    if not mediated or row["partial"] is None:
        return "read"
    if row.get("given_by_few"):
        return f"read; open whether beyond what is given: too few units for {row['given_by_few']}"
    low, high = row["partial_low"], row["partial_high_90"]
    if row["partial_q"] is not None and row["partial_q"] <= ALPHA and low is not None and low > smallest:
        return "read beyond what is given"
    if high is not None and high < smallest:
        return "read; not beyond what is given"
    return "read; open whether beyond what is given"


BEYOND = "beyond the frame, time and previous actions"
LEARNT = "more than with its weights shuffled"
# what else is said of a target: column -> (whose value, in words)
ADDED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"memory": ("everything_minus_all", BEYOND), "learnt": ("linear_minus_random", LEARNT)}
)


def added_verdict(row: Mapping[str, Any], column: str, smallest: float) -> str:
    """Of the columns of ``ADDED``, in words, judged as in ``verdict``.  ``memory``: whether the states say more of a
    target than the frame, time and previous actions together (what adding the states to these adds in R^2); ``learnt``:
    whether they say more than the states of the same network with its weights shuffled."""
    name, words = ADDED[column]
    if row["units_varying"] < LEAST_VARYING:
        return "too rare to tell"
    low, high, q = (row[f"{name}_{end}"] for end in ("low", "high_90", "q"))
    if low is not None and low > smallest and q is not None and q <= ALPHA:
        return words
    return f"not {words}" if high is not None and high < smallest else f"open whether {words}"


def _controls(states: FoldedRidge, rows: Rows, rng: np.random.Generator) -> list[dict[str, Any]]:
    """R^2 of random numbers that are constant within a life, a world or a map: above 0, the split leaks."""
    out = []
    for name, of_N in rows.groups.items():
        number_N = np.unique(of_N, return_inverse=True)[1]
        y_NS = rng.standard_normal((int(number_N.max()) + 1, CONSTANTS))[number_N]
        spread_S = spread_of(y_NS)
        if (spread_S > 0).all():  # there are at least two of them
            r2_S = 1 - states.errors(y_NS) / spread_S
            low, high = band_of(r2_S, ALPHA)
            out.append({"constant_per": name, "r2": float(r2_S.mean()), "low": low, "high": high,
                        "groups": int(number_N.max()) + 1, "draws": CONSTANTS})  # fmt: skip
    return out


def _directions(result: Result, states: FoldedRidge, y_NK: np.ndarray) -> None:
    """Arrays ``direction_read`` and ``direction_move`` [K, F]: a change of state by ``move`` changes what the linear
    probe (fitted on all rows) reads, ``read @ state``, by 1, and moves the z-scored state as little as can be."""
    read_FK = states.whole(y_NK)
    std_F = states.x_NF.std(0)
    scaled_FK = read_FK * std_F[:, None]
    norm_K = (scaled_FK**2).sum(0)
    moved_FK = np.divide(scaled_FK, norm_K, out=np.zeros_like(scaled_FK), where=norm_K > 0) * std_F[:, None]
    result.arrays |= {"direction_read": read_FK.T, "direction_move": moved_FK.T}
