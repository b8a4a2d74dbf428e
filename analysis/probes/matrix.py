"""Every quantity from every input, on the same rows, with intervals over whole units: a table to print.

*Advantage*: the score of a state less that of a baseline (the observation, the embedding ...), unit by unit.
*Selectivity*: the score less that of the targets of other units.  *By step*: the score where rows and not units are
held out, which neighbouring steps give away; with a random number of each life, of which nothing can be known, it shows
by how much.

N rows, S columns of targets, U units, R weightings of units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.probes.config import ProbesConfig
from analysis.probes.inputs import Input
from analysis.probes.labels import Known, Label, Labels, Tally, joined, labels_of
from analysis.probes.scores import LEAST_VARYING, varying_units
from analysis.probes.streamed import Split, networks, tallies_of
from analysis.shared.probe_fits import exchanged_units, folds_of
from core.artefacts import finite
from core.episodes import spread_over_episodes
from core.progress import bar
from core.stats import (
    ALPHA,
    LOGIT,
    LOST,
    PLAIN,
    Estimate,
    benjamini_hochberg,
    difference,
    failure_not_met,
    gain_not_met,
    jackknifed,
    left_out,
    mean_p,
)

CONTROL = "a random number a life"
CONTROLS = 8  # of them
TESTS = 512  # advantages that are tested with the same draws
EXCHANGED = " of others"
YES, NO, OPEN = "yes", "no", "open"  # docs/claims.md


class Rows(NamedTuple):
    """What is read: N rows, an episode's in a row."""

    step_E: Mapping[int, np.ndarray]  # episode -> its steps
    quantities: Mapping[str, np.ndarray]  # float64 [N]; NaN where there is no such thing
    unit_N: np.ndarray  # int64, what is held out together: 0 .. U-1

    @property
    def life_N(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.step_E)), [len(t) for t in self.step_E.values()])


class Scored(NamedTuple):
    """What was found of targets that have a value at the same rows."""

    known: Known
    linear: dict[str, list[Tally]]  # by input: of each split
    nets: dict[str, Tally]
    net_known: Known | None
    units_varying: Sequence[int]
    weight_RU: np.ndarray
    rows: int

    @property
    def labels(self) -> tuple[Label, ...]:
        """The real ones; their exchanged twins and the controls follow."""
        return tuple(x for x in self.known.labels if not x.name.endswith(EXCHANGED) and not x.name.startswith(CONTROL))


def score_inputs(rows: Rows, inputs: Sequence[Input], classes: Sequence[str], config: ProbesConfig) -> list[Scored]:
    """Every target that varies in enough units, from every input."""
    sets: dict[bytes, list[str]] = {}
    for name, y_N in rows.quantities.items():
        sets.setdefault(np.isfinite(y_N).tobytes(), []).append(name)
    out = []
    for names in sets.values():
        on_N = np.isfinite(rows.quantities[names[0]])
        if len(np.unique(rows.unit_N[on_N])) < 2 * config.folds:
            continue
        some = {n: rows.quantities[n][on_N] for n in names if np.ptp(rows.quantities[n][on_N]) > 0}
        if some:
            own = Rows(_steps_of(rows.step_E, on_N), some, np.unique(rows.unit_N[on_N], return_inverse=True)[1])
            out.append(_score(own, [_part_of(x, rows.step_E, on_N) for x in inputs], classes, config))
    return out


def _steps_of(step_E: Mapping[int, np.ndarray], on_N: np.ndarray) -> dict[int, np.ndarray]:
    """The steps of those rows that are on."""
    out, first = {}, 0
    for e, step in step_E.items():
        here = step[on_N[first : first + len(step)]]
        first += len(step)
        if len(here):
            out[e] = here
    return out


def _part_of(given: Input, step_E: Mapping[int, np.ndarray], on_N: np.ndarray) -> Input:
    """The input of those rows that are on."""
    if on_N.all():
        return given
    place, first = {}, 0
    for e, step in step_E.items():
        place[e] = slice(first, first + len(step))
        first += len(step)
    return given._replace(of=lambda e, rows: given.of(e, place[e])[on_N[place[e]]])


def _score(rows: Rows, inputs: Sequence[Input], classes: Sequence[str], config: ProbesConfig) -> Scored:
    rng = np.random.default_rng(config.seed)
    unit_N, life_N = rows.unit_N, rows.life_N
    units = int(unit_N.max()) + 1
    real = labels_of(rows.quantities, classes)
    number_NC = rng.standard_normal((len(rows.step_E), CONTROLS))[life_N]
    control = labels_of({f"{CONTROL} {i}": y for i, y in enumerate(number_NC.T)}, ())
    step_N = np.concatenate(list(rows.step_E.values()))
    parts: list[Labels] = [real, control]
    for _ in range(config.exchanges):
        parts.append(real.taken(exchanged_units(life_N, unit_N, rng, step_N), EXCHANGED))
    labels = joined(parts)
    splits = [
        Split("unit", folds_of(unit_N, config.folds, rng), True),
        Split("step", rng.permutation(len(unit_N)) % config.folds, False),
    ]
    without_others = len(real.labels) + len(control.labels)
    linear = tallies_of(inputs, rows.step_E, labels, splits, without_others, unit_N, units)
    nets, net_known = {}, None
    if config.mlp:
        every = np.arange(len(unit_N))
        some = spread_over_episodes(every, life_N, config.max_rows, rng) if config.max_rows else every
        net_known = Known.of(real.of(some), unit_N[some], units)
        with bar("fitting networks", len(inputs), "inputs") as progress:
            for given in inputs:
                if given.width:
                    nets[given.name] = networks(given, rows.step_E, real, splits[0].fold_N, unit_N, units, some,
                                                config.net, config.seed, config.device)  # fmt: skip
                progress.advance()
    varying = [varying_units(rows.quantities[x.name], unit_N) for x in real.labels]
    return Scored(Known.of(labels, unit_N, units), linear, nets, net_known, varying, left_out(units, rng), len(unit_N))


def cells(name: str, value_R: np.ndarray, rng: np.random.Generator, config: ProbesConfig, link: Any = PLAIN,
          levels: Sequence[float] = (0.95,)) -> dict[str, Any]:  # fmt: skip
    """A statistic of all units with its interval, as table cells."""
    out: dict[str, Any] = {}
    for level in levels:
        value, low, high = jackknifed(value_R, rng=rng, link=link, level=level, draws=config.resamples)
        mark = "" if level == 0.95 else f"_{100 * level:.0f}"
        out |= {name: finite(value), f"{name}_low{mark}": finite(low), f"{name}_high{mark}": finite(high)}
    return out


def input_rows(scored: Sequence[Scored], config: ProbesConfig) -> list[dict[str, Any]]:
    """A row a target and input; at the end a row an input of the control."""
    rng = np.random.default_rng(config.seed)
    out: list[dict[str, Any]] = []
    for part in scored:
        w, known, count = part.weight_RU, part.known, len(part.labels)
        for i, label in enumerate(part.labels):
            twins = range(count + CONTROLS + i, len(known.labels), count)
            for name, (unit, step) in part.linear.items():
                row: dict[str, Any] = {"target": label.name, "kind": label.kind, "input": name, "metric": label.metric}
                score_R, link = known.score(unit, i, w), LOST if label.kind == "number" else LOGIT
                row |= cells("score", score_R, rng, config, link)
                row |= cells("r2", known.r2(unit, i, w), rng, config, LOST)
                if label.values:
                    row |= cells("accuracy", known.accuracy(unit, i, w), rng, config, LOGIT)
                    row |= {"majority": known.majority(i), "classes": len(label.values), "chance": label.chance}
                if len(twins):
                    null_R = np.mean([known.score(unit, k, w) for k in twins], 0)
                    row |= {"exchanged": finite(null_R[0])} | cells("selectivity", score_R - null_R, rng, config)
                by_step = known.score(step, i, w[:1])[0]
                row |= {"by_step": finite(by_step), "inflation": finite(by_step - score_R[0])}
                if name in part.nets and part.net_known is not None:
                    row |= cells("network", part.net_known.score(part.nets[name], i, w), rng, config, link)
                if label.values:
                    could = known.could_gain(i, part.units_varying[i])
                    row |= with_failures(row, {"score": could, "network": could, "accuracy": (w.shape[1], 1.0)})
                out.append(row | {"units_varying": part.units_varying[i], "n": w.shape[1], "rows": part.rows})
    whole = max(scored, key=lambda part: part.rows)
    w, known = whole.weight_RU, whole.known
    first = len(whole.labels)
    for name, (unit, step) in whole.linear.items():
        held_R = np.mean([known.r2(unit, k, w) for k in range(first, first + CONTROLS)], 0)
        by_step = float(np.mean([known.r2(step, k, w[:1])[0] for k in range(first, first + CONTROLS)]))
        out.append({"target": CONTROL, "kind": "control", "input": name, "metric": "r2",
                    **cells("score", held_R, rng, config), "by_step": by_step, "inflation": by_step - float(held_R[0]),
                    "n": w.shape[1], "rows": whole.rows})  # fmt: skip
    return out


def advantage_rows(scored: Sequence[Scored], inputs: Sequence[Input], config: ProbesConfig) -> list[dict[str, Any]]:
    """A row a target, state, baseline and kind of probe: by how much the state says more."""
    rng = np.random.default_rng(config.seed)
    states, against = subjects(inputs)
    out: list[dict[str, Any]] = []
    for part in scored:
        first, ahead = len(out), list[np.ndarray]()
        for i, label in enumerate(part.labels):
            for one in states:
                for other in against:
                    if other == one:
                        continue
                    pairs = {"linear": (part.known, part.linear[one][0], part.linear[other][0])}
                    if part.net_known is not None and one in part.nets and other in part.nets:
                        pairs["network"] = part.net_known, part.nets[one], part.nets[other]
                    for probe, (known, a, b) in pairs.items():
                        row: dict[str, Any] = {"target": label.name, "input": one, "over": other, "probe": probe,
                                               "metric": label.metric}  # fmt: skip
                        gain_R = known.score(a, i, part.weight_RU) - known.score(b, i, part.weight_RU)
                        row |= cells("advantage", gain_R, rng, config, levels=(0.95, 0.9))
                        row |= with_room(row, *known.could_gain(i, part.units_varying[i]))
                        ahead.append(known.ahead_U(a, b, i))
                        out.append(row | {"p": None, "units_varying": part.units_varying[i],
                                          "n": part.weight_RU.shape[1]})  # fmt: skip
        for at in range(0, len(ahead), TESTS):  # together: the draws of one are those of all
            p_X = mean_p(np.stack(ahead[at : at + TESTS], 1), rng=rng)
            for row, p in zip(out[first + at :], np.atleast_1d(p_X), strict=False):
                row["p"] = finite(float(p))
    for probe in ("linear", "network"):
        family = [row for row in out if row["probe"] == probe]
        enough = [row["units_varying"] >= LEAST_VARYING for row in family]
        ps = [row["p"] if on and row["p"] is not None else np.nan for row, on in zip(family, enough, strict=True)]
        for row, q in zip(family, benjamini_hochberg(np.array(ps, np.float64)), strict=True):
            row["q"] = finite(q)
            row["verdict"] = verdict(row, config.smallest)
    return out


def with_room(row: Mapping[str, Any], units: int, reach: float) -> dict[str, Any]:
    """The ends of an advantage that leave room for units that no unit was like (``core.stats.gain_not_met``): the 90 %
    end that "no" is read from, and where all units gain the same, of which an interval without a width says nothing,
    those of 95 %, too."""
    value, high_90 = row["advantage"], row["advantage_high_90"]
    if value is None or high_90 is None:
        return {}
    out: dict[str, Any] = {"advantage_high_90": finite(gain_not_met(value, high_90, units, 0.9, reach))}
    if row["advantage_low"] == row["advantage_high"]:
        high = gain_not_met(value, value, units, 0.95, reach)
        out |= {"advantage_low": finite(2 * value - high), "advantage_high": finite(high)}
    return out


def with_failures(row: Mapping[str, Any], scores: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """The lower ends of the scores of a row, which are 1 at best, with room for units that fail and that none was
    (``core.stats.failure_not_met``); scores: the units and the reach of each that may be in it."""
    ends = {f"{name}_low": about for name, about in scores.items()}
    return {end: failure_not_met(row[end], *about) for end, about in ends.items() if row.get(end) is not None}


def subjects(inputs: Sequence[Input]) -> tuple[list[str], list[str]]:
    """(the inputs that hold a memory, what each of them is compared with: the baselines)."""
    states = [x.name for x in inputs if not x.is_baseline]
    return states, [x.name for x in inputs if x.is_baseline]


def verdict(row: Mapping[str, Any], smallest: float) -> str:
    """Whether the advantage exists, as docs/claims.md says it of effects: yes where the 95 % interval lies beyond the
    smallest size and q is at most 0.05; no where the 90 % interval, with room for units that were not met, lies below
    it; else open."""
    low, high = row["advantage_low"], row["advantage_high_90"]
    if low is not None and low > smallest and row["q"] is not None and row["q"] <= ALPHA:
        return YES
    return NO if high is not None and high < smallest else OPEN


def apart(
    table: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], smallest: float
) -> list[dict[str, Any]]:
    """A row a score of ``table`` whose target ``others`` has, too: the difference of the scores of two recordings,
    which share no unit, from their intervals (Zou & Donner 2008, "Construction of confidence limits about effect
    measures"); p as of a normal with the interval's half width towards 0.  Verdicts are of ``verdict``, of 95 %
    intervals alone (scores have no others) and q over these rows; open where the target varies in too few units of
    either."""
    of = {row["target"]: row for row in others}
    out = [_difference(row, of[row["target"]]) for row in table if row["target"] in of and row["kind"] != "control"]
    for row, q in zip(out, benjamini_hochberg([row["p"] for row in out]), strict=True):
        row["p"], row["q"] = finite(row["p"]), finite(q)
        known = row | {"advantage_high_90": row["advantage_high"]}
        row["verdict"] = OPEN if row["q"] is None else verdict(known, smallest)
    return out


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    from scipy.special import ndtr, ndtri

    row = {"target": one["target"], "input": one["input"], "over": other["input"], "probe": "linear",
           "metric": one["metric"], "advantage": None, "advantage_low": None, "advantage_high": None,
           "advantage_high_90": None, "p": np.nan, "n": one["n"]}  # fmt: skip
    if None in [x[name] for x in (one, other) for name in ("score", "score_low", "score_high")]:
        return row
    a, b = (Estimate(x["score"], x["score_low"], x["score_high"], x["n"]) for x in (one, other))
    value, low, high, _ = difference(a, b)
    row |= {"advantage": value, "advantage_low": low, "advantage_high": high}
    half = value - low if value > 0 else high - value
    if half > 0 and min(x["units_varying"] for x in (one, other)) >= LEAST_VARYING:
        row["p"] = float(2 * ndtr(-abs(value) / half * ndtri(0.975)))
    return row


def emergence_rows(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row a target, input and recording, the recordings in their order."""
    kept = ("target", "kind", "input", "metric", "score", "score_low", "score_high", "by_step", "n", "rows")
    return [{"recording": name} | {k: row[k] for k in kept} for name, table in tables.items() for row in table]


def paper(rows: Sequence[Mapping[str, Any]], advantages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The table to print: a row a target; of every input its score with the interval, then the advantages."""
    out: dict[str, dict[str, str]] = {}
    for row in rows:
        metric = "R2" if row["metric"] == "r2" else "balanced accuracy"
        line = out.setdefault(row["target"], {"target": row["target"], "metric": metric})
        line[row["input"]] = _number(row["score"], row["score_low"], row["score_high"])
    for row in advantages:
        if row["probe"] == "linear":
            said = _number(row["advantage"], row.get("advantage_low"), row.get("advantage_high"), "+.2f")
            out[row["target"]][f"{row['input']} - {row['over']}"] = f"{said} {row['verdict']}"
    return list(out.values())


def _number(value: float | None, low: float | None, high: float | None, form: str = ".2f") -> str:
    """A score with its interval; an end beyond what is of use (one life decides: minus 10 to the 16) in words."""
    if value is None:
        return "-"
    if low is None or high is None:
        return f"{value:{form}}"
    least = "below -1" if low < -1 else f"{low:{form}}"
    return f"{value:{form}} [{least}, {'above +1' if high > 1 else f'{high:{form}}'}]"


def signed(row: Mapping[str, Any], name: str) -> str:
    """A difference of a table in words: ``+0.12 [+0.05, +0.19]``."""
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    return _number(value, low, high, "+.2f")


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """A table in Markdown."""
    head = list(dict.fromkeys(k for row in rows for k in row))
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row.get(k, "") for k in head) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def latex(rows: Sequence[Mapping[str, str]]) -> str:
    """The same for LaTeX (booktabs)."""
    head = list(dict.fromkeys(k for row in rows for k in row))

    def line(words: Sequence[str]) -> str:
        return " & ".join(w.replace("_", r"\_").replace("&", r"\&") for w in words) + r" \\"

    body = [line([row.get(k, "") for k in head]) for row in rows]
    return "\n".join([rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\toprule", line(head), r"\midrule", *body,
                      r"\bottomrule", r"\end{tabular}", ""])  # fmt: skip
