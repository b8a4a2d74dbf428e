"""Saliency in numbers: where a quantity's gradient lies, how exactly methods add up, and what their checks say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.shared.quantities import Quantity
from core import artefacts
from core.stats import Estimate, bootstrap_mean

Range = tuple[float, float]
ANY, SIZE, CORRELATION = (-np.inf, np.inf), (0.0, np.inf), (-1.0, 1.0)  # what a mean can be, whatever the samples


def summarise(
    result: artefacts.Result, quantities: Sequence[Quantity], ids: Sequence[int], units: np.ndarray, seed: int,
    checks: Mapping[tuple[str, str, str], np.ndarray] | None = None,
) -> None:  # fmt: skip
    """Put the table ``saliency`` (a row a sample and quantity), its means with intervals, and the table ``checks`` (a
    row a quantity, check and what was checked) into a result.

    Samples that ended before the target step are in the table, not in the means.  units: the independent
    episode of each sample."""
    a, target = result.arrays, result.notes["target_step"]

    def mean_of(values: np.ndarray, within: Range) -> Estimate | None:
        known = np.isfinite(values) & a["alive"][:, target]
        if not known.any():
            return None
        e = bootstrap_mean(np.asarray(values, np.float64)[known], units[known], rng=np.random.default_rng(seed))
        # The interval knows no bounds; cut to what there can be, it covers as often.
        low, high = np.clip(e.interval, *within)
        return e._replace(low=float(low), high=float(high))

    promised = [m for m in DELTAS if any(f"{m}_delta_{q.name}" in a for q in quantities)]
    rows: list[dict[str, Any]] = []
    for q in quantities:
        sizes = {part: gradient_norm(result, q, part) for part in ("", "_agent_only", "_through_world")}
        rows += sample_rows(result, q, ids, sizes, promised)
        whole, by_world = sizes[""], sizes["_through_world"]
        ratio = np.divide(by_world, whole, out=np.full(len(whole), np.nan), where=whole > 0)  # of nothing: no part
        of_world = "norm of the straight-through gradient by the world / norm of the whole"
        means: dict[str, tuple[np.ndarray, str, Range]] = {"through_world": (ratio, of_world, SIZE)}
        for name in RANDOMISED:
            if f"{name}_{q.name}" in a:
                means[name] = (a[f"{name}_{q.name}"], "Spearman correlation of |gradient|", CORRELATION)
        for m in promised:
            if f"{m}_delta_{q.name}" in a:
                name = "completeness_delta" if m == "integrated" else f"completeness_delta_{m}"
                means[name] = (np.abs(a[f"{m}_delta_{q.name}"]), q.unit, SIZE)
        for name, (values, unit, within) in means.items():
            e = mean_of(values, within)
            if e is not None:
                result.scalar(f"{name}_{q.name}", e.value, unit, e.n, (e.low, e.high))
    result.tables["saliency"] = rows
    if unknown := said_of_constant(result, quantities):
        result.notes["randomised"] = unknown
    if checks:
        result.tables["checks"] = check_rows(checks, {q.name: q.unit for q in quantities}, mean_of)


def said_of_constant(result: artefacts.Result, quantities: Sequence[Quantity]) -> str:
    """A line on the rank correlations of pictures that are not known; '' where all are."""
    a, alive = result.arrays, result.arrays["alive"][:, result.notes["target_step"]]
    unknown = []
    for q in quantities:
        for name in RANDOMISED:
            if count := int((alive & np.isnan(a.get(f"{name}_{q.name}", np.zeros(len(alive))))).sum()):
                unknown.append(f"{name}_{q.name} of {count} of {alive.sum()}")
    if not unknown:
        return ""
    return (
        f"not known, {', '.join(unknown)} samples: the gradient is the same everywhere (a flat quantity, of the agent "
        "or of one with shuffled weights), and has no ranks"
    )


def said_of_ended(result: artefacts.Result) -> str:
    """A line on the samples that ended before the target step; '' where none did."""
    target = result.notes["target_step"]
    ended = result.arrays["sample_ids"][~result.arrays["alive"][:, target]].tolist()
    if not ended:
        return ""
    of = ", ".join(map(str, ended))
    which = "the combined sample" if result.notes["combined"] else f"{'samples' if ended[1:] else 'sample'} {of}"
    return (
        f"{which} ended before step {target} (--target_step): what is drawn there is of a simulation that goes on "
        "after its end, and is left out of means"
    )


def said_of_parts(result: artefacts.Result, quantities: Sequence[Quantity]) -> list[str]:
    """A line a method on the quantities whose change its parts miss, and on what can make them."""
    a, out = result.arrays, []
    for method, (name, remedy) in COMPLETE.items():
        missed, of_what = [], "latent_change" if method == "latent" else "change"
        for q in quantities:
            delta, change = (a.get(f"{key}_{q.name}", np.zeros(0)) for key in (f"{method}_delta", of_what))
            least = 1e-5 * np.abs(a.get(f"y_{q.name}", np.zeros(1))).max(initial=0)  # what is less is rounding
            miss, of = np.nansum(np.abs(delta)), np.nansum(np.abs(change))
            if miss > max(INCOMPLETE * of, len(delta) * least):
                missed.append(f"{q.name} by {miss / max(of, 1e-30):.0%}")
        if missed:
            out.append(f"the parts of {name} miss the change of {', '.join(missed)} {remedy}")
    return out


def gradient_norm(result: artefacts.Result, q: Quantity, part: str) -> np.ndarray:
    """Norm of a quantity's gradient over all frames, float64 [S]."""
    kept: np.ndarray | None = result.arrays.get(f"norm_{q.name}{part}")
    if kept is not None:
        return kept
    return np.sqrt(sum(_squares(result, f"grad_{field}_{q.name}{part}") for field in result.notes["fields"]))


def _squares(result: artefacts.Result, name: str) -> np.ndarray:
    """Sum of an array's squared numbers, float64 [S]; of a spooled one a block is in memory at a time."""
    blocks = result.spooled[name].blocks() if name in result.spooled else [result.arrays[name]]
    return np.concatenate([(x.astype(np.float64) ** 2).reshape(len(x), -1).sum(1) for x in blocks])


def sample_rows(
    result: artefacts.Result, q: Quantity, ids: Sequence[int], sizes: Mapping[str, np.ndarray], promised: Sequence[str]
) -> list[dict[str, Any]]:
    """A quantity's rows of the table ``saliency``.  promised: methods whose parts should add up to the change."""
    a, target = result.arrays, result.notes["target_step"]
    nothing = np.full(len(ids), np.nan)
    correlation = a.get(f"randomised_correlation_{q.name}", nothing)
    rows = []
    for s, i in enumerate(ids):
        row = {
            "sample": "combined" if result.notes["combined"] else i,
            "quantity": q.name,
            "unit": q.unit,
            "y": float(a[f"y_{q.name}"][s]),
            "alive": bool(a["alive"][s, target]),
            "gradient_norm": float(sizes[""][s]),
            "gradient_norm_agent_only": float(sizes["_agent_only"][s]),
            "gradient_norm_through_world": float(sizes["_through_world"][s]),
            "randomised_correlation": float(correlation[s]),
        }
        for m in promised:
            delta = a.get(f"{m}_delta_{q.name}", nothing)
            change = a.get(f"latent_change_{q.name}" if m == "latent" else f"change_{q.name}", nothing)
            row[f"{m}_change"] = float(change[s]) if f"{m}_delta_{q.name}" in a else np.nan
            row[f"{m}_delta"] = float(delta[s])
        rows.append(row)
    return rows


def check_rows(
    checks: Mapping[tuple[str, str, str], np.ndarray],
    unit_of: Mapping[str, str],
    mean_of: Callable[[np.ndarray, Range], Estimate | None],
) -> list[dict[str, Any]]:
    """The table ``checks``: means of values and controls, with intervals."""
    table: list[dict[str, Any]] = []
    for (name, what, of), values in checks.items():
        row = {"quantity": name, "check": what, "of": of, "unit": CHECKS[what].unit or unit_of[name], "n": 0}
        parts = {"": values[:, 0]}
        labels = CHECKS[what].controls
        parts |= {f"_{label}": values[:, i + 1] for i, label in enumerate(labels)}
        if labels:  # paired, so that the interval is that of the difference
            parts["_minus_control"] = values[:, 0] - values[:, 1]
        for part in ("", "_control", "_minus_control", "_ceiling"):
            within = ANY if part == "_minus_control" else CHECKS[what].within
            e = mean_of(parts[part], within) if part in parts else None
            if e and what == "randomised" and part == "_minus_control":
                e = e._replace(low=np.nan, high=np.nan)  # of one pair of shuffled ones, whatever the number of frames
            at = part.removeprefix("_") or "value"
            row |= {at: e.value if e else np.nan, f"{at}_low": e.low if e else np.nan}
            row |= {f"{at}_high": e.high if e else np.nan}
            row["n"] = e.n if e and not part else row["n"]
        row["good"] = CHECKS[what].good
        table.append(row)
    return table


class Check(NamedTuple):
    """How a check's numbers read."""

    unit: str  # "": the quantity's own
    controls: tuple[str, ...]
    good: str
    within: Range


CHECKS = {
    "infidelity": Check("squared unit", ("control",), "below control: the same map, its pixels shuffled", SIZE),
    "sensitivity": Check("relative change of the map", (), "small", SIZE),
    "insertion": Check("", ("control",), "above control: random order", ANY),
    "deletion": Check("", ("control",), "below control: random order", ANY),
    "randomised": Check("Spearman correlation of |gradient|", ("control", "ceiling"),
                        "near control (one pair of randomised ones), far below ceiling (trained, two noises)",
                        CORRELATION),
}  # fmt: skip
RANDOMISED = ("randomised_correlation", "randomised_floor", "randomised_ceiling")
INCOMPLETE = 0.05  # of a change, beyond which it is told that a method's parts miss it
COMPLETE = {  # methods whose parts add up to the change: name, and what to do where they do not
    "integrated": ("integrated gradients", "(completeness_delta): take more --integrated_steps"),
    "deeplift": ("DeepLIFT", "(completeness_delta_deeplift): something in the agent has no rule "
                 "(analysis/saliency/deeplift.py); look at integrated gradients instead"),
    "latent": ("integrated gradients by latents", "(completeness_delta_latent): a choice that turns on the way is a "
               "jump, which no gradient sees; where none does, take more --integrated_steps"),
}  # fmt: skip
DELTAS = ("integrated", "deeplift", "latent")  # methods that promise to add up
