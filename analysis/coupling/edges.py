"""The surviving edges of a coupling as a table and as a page to read, with the part that each effect has.

An effect is direct (the agent's memory alone), through the world (the agent acts, the world answers, the agent sees
it; its actions enumerated), or both.  It is an edge where it is significant, its 95 % interval leaves 0 out and the
straight-through number, for comparison beside it, has the same sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.coupling.clock import SAID
from core.artefacts import Result
from core.stats import few

PATHS = ("", "_agent_only", "_through_world")  # whole = agent only + through world
WORDS = dict(zip(PATHS, ("whole", "direct (memory)", "through the world (actions enumerated)"), strict=True))
STRAIGHT = {"": "straight_through", "_through_world": "straight_through_world"}  # arrays; memory has no action to pass
COMPARED = "straight-through, for comparison"
METHOD = (
    "J is the mean change of the target's coordinate for a small change of the source's, in the simulator: whole = "
    "direct (memory: the agent's own, with its actions held) + through the world (actions enumerated: at every step in "
    "between each action is tried in the simulator, and what it leads to counts as much as the source moves its "
    "probability in the agent's softmax there; before and after that step the agent does what is likeliest, and the "
    "categories of the world's state take their mode). Straight-through, for comparison: one backward pass through "
    "actions and categories as if they were continuous; what a simulator does between two actions is not trained, so "
    "this number alone shows no effect"
)
PAGE = "edges.md"
MOST = 500  # edges on the page; the table has them all


def beyond_zero(result: Result, path: str, alpha: float) -> np.ndarray:
    """bool [behaviours, lags, i, j]: the effects of a path with q <= alpha whose 95 % interval leaves 0 out."""
    a = result.arrays
    low, high = a[f"jacobian{path}_low"], a[f"jacobian{path}_high"]
    there: np.ndarray = (a[f"q_jacobian{path}"] <= alpha) & ((low > 0) | (high < 0))
    return there


def drawn(result: Result, path: str, alpha: float) -> np.ndarray:
    """bool [behaviours, lags, i, j]: those of ``beyond_zero`` whose straight-through number has the same sign."""
    there = beyond_zero(result, path, alpha)
    if path in STRAIGHT:
        there &= np.sign(result.arrays[f"jacobian{path}"]) == np.sign(result.arrays[STRAIGHT[path]])
    return there


def label(names: Mapping[Any, str], behaviour: int) -> str:
    """``behaviour 5``, with its name in brackets where it has one of its own."""
    plain = f"behaviour {behaviour}"
    name = " ".join(str(names.get(str(behaviour), "")).split()).removeprefix(plain).lstrip(": ")
    return f"{plain} ({name})" if name else plain


def edges(result: Result, alpha: float) -> list[dict[str, Any]]:
    """The entries whose whole effect is ``drawn``, the strongest first, each with a sentence.

    ``agree``: whether Jacobian and correlation have the same sign, None where the correlation is not significant.
    """
    a = result.arrays
    parts, directions = {path: drawn(result, path, alpha) for path in PATHS}, result.notes["directions"]
    rows = []
    for b, at, i, j in np.argwhere(parts[""]):
        here = (b, at, i, j)
        behaviour = int(a["behaviours"][b])
        row: dict[str, Any] = {
            "behaviour": behaviour,
            "name": label(result.notes["names"], behaviour),
            "lag": int(a["lags"][at]),
            "source": directions[i],
            "target": directions[j],
        }
        for path, column in zip(PATHS, ("J", "J_direct", "J_through_world"), strict=True):
            row[column] = float(a[f"jacobian{path}"][here])
            row[f"{column}_low"] = float(a[f"jacobian{path}_low"][here])
            row[f"{column}_high"] = float(a[f"jacobian{path}_high"][here])
            if path in STRAIGHT:
                row[f"{column}_straight_through"] = float(a[STRAIGHT[path]][here])
        row["q"] = float(a["q_jacobian"][here])
        row["q_direct"] = float(a["q_jacobian_agent_only"][here])
        row["q_through_world"] = float(a["q_jacobian_through_world"][here])
        row["path"] = _path(bool(parts["_agent_only"][here]), bool(parts["_through_world"][here]))
        row["r"], row["q_r"] = float(a["correlation"][here]), float(a["q_correlation"][here])
        row["agree"] = bool(np.sign(row["J"]) == np.sign(row["r"])) if row["q_r"] <= alpha else None
        row["n"], row["episodes"] = int(a["samples"][b]), int(a["sample_episodes"][b])
        row["sentence"] = sentence(row)
        rows.append(row)
    return sorted(rows, key=lambda row: -abs(float(row["J"])))


def _path(direct: bool, world: bool) -> str:
    """Which parts would be drawn by themselves."""
    if direct and world:
        return "both"
    return "direct" if direct else "through world" if world else "neither alone"


def sentence(row: Mapping[str, Any]) -> str:
    """An edge in words."""
    verb = "raises" if row["J"] > 0 else "lowers"
    target = "itself" if row["source"] == row["target"] else row["target"]
    r = "not defined" if math.isnan(row["r"]) else f"{row['r']:.2f}"
    return (
        f"{row['source']} at t-{row['lag']} {verb} {target} in {row['name']}: J = {row['J']:.3g}, "
        f"r = {r}, q = {row['q']:.2g}; {WORDS['_agent_only']} {row['J_direct']:.3g} (q = {row['q_direct']:.2g}), "
        f"{WORDS['_through_world']} {row['J_through_world']:.3g} (q = {row['q_through_world']:.2g}); "
        f"{COMPARED}: whole {row['J_straight_through']:.3g}, through the world "
        f"{row['J_through_world_straight_through']:.3g}"
    )


def strongest_pairs(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of rows sorted by strength the first of every pair of different directions: its own past is no news, and one
    pair is found at many lags and in many behaviours."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        if row["source"] != row["target"]:
            found.setdefault((row["source"], row["target"]), row)
    return list(found.values())


def page(result: Result) -> str:
    """All edges as Markdown, those between different directions first, by strength."""
    rows, alpha = result.tables["edges"], result.notes["alpha"]
    between = [row for row in rows if row["source"] != row["target"]]
    own = [row for row in rows if row["source"] == row["target"]]
    others = beyond_zero(result, "", alpha) & ~drawn(result, "", alpha)
    lines = [
        "# What drives what",
        "",
        f"In the {result.notes['basis_kind']} basis: {len(between)} effects of one direction on another, {len(own)} of "
        f"one on itself, with q ≤ {alpha:g} over all behaviours, lags and entries, a 95 % interval over episodes that "
        f"leaves 0 out, and the sign of the straight-through number. {others.sum()} more are left out because their "
        "straight-through number has the other sign or is 0.",
        "",
        f"{METHOD}. {_distinct(result)}",
        "",
        "* marks a part that meets the same three conditions by itself. r is the correlation of the two coordinates "
        f"that many steps apart, {SAID}; where it is significant, `signs` says whether it agrees with J. An effect is "
        "one in the simulator; it is a hypothesis about the world, to test by intervention.",
    ]
    for said in (*result.notes["left_out"], *result.notes["resolution"]):
        lines += ["", f"Note: {said}."]
    for title, some in (("Between different directions", between), ("A direction's own past", own)):
        lines += ["", f"## {title}", ""]
        if not some:
            lines.append("None.")
            continue
        lines += [
            f"| effect | in | J whole | whole, {COMPARED} | {WORDS['_agent_only']} | {WORDS['_through_world']} "
            f"| through the world, {COMPARED} | q | r | q of r | signs | episodes |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            *(_cells(row) for row in some[:MOST]),
        ]
        if len(some) > MOST:
            lines += ["", f"{len(some) - MOST} weaker ones are in edges.csv."]
    return "\n".join([*lines, *_of_kinds(result), *_of_extremes(result)]) + "\n"


def _of_kinds(result: Result) -> list[str]:
    """The behaviours that work alike, a line a group."""
    a = result.arrays
    if "kind" not in a or len(a["kind"]) < 2 or a["kind"].max() < 0:
        return []
    lines = [
        "", "## Behaviours by what moves what", "",
        "Groups of behaviours by their Jacobians (all lags and directions, whole effects); no two of a group were told "
        "apart (means, whole episodes drawn again; q over the pairs), which does not show that they are the same.", "",
    ]  # fmt: skip
    for kind in range(int(a["kind"].max()) + 1):
        members = [label(result.notes["names"], int(b)) for b in a["behaviours"][a["kind"] == kind]]
        lines.append(f"- kind {kind}: {'; '.join(members)}")
    missed = [str(int(b)) for b in a["behaviours"][a["kind"] < 0]]
    return [*lines, *(["", f"Not compared, for want of episodes: {', '.join(missed)}."] if missed else [])]


def _of_extremes(result: Result) -> list[str]:
    """What goes with, and follows, an extreme of a direction."""
    if "extremes" not in result.tables:
        return []
    share, rows = result.notes["extremes"], result.tables["extremes"]
    lines = [
        "", f"## Where a direction is extreme: its upper and lower {100 * share:.3g} %", "",
        "Over all behaviours. Mean: the target's, that many steps later, in its standard deviations from its mean "
        "(null: the sources of one episode with the targets of another). J: the mean Jacobian there, of the whole "
        "effect. In italics what is not significant, or whose interval holds 0.", "",
    ]  # fmt: skip
    if not rows:
        return [*lines, "None is significant."]
    lines += [
        "| source | target | lag | mean (SD) | q | J | q | steps | episodes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    def cell(row: Mapping[str, Any], value: str, low: str, high: str, q: str) -> str:
        text = f"{row[value]:.3g} [{row[low]:.3g}, {row[high]:.3g}]"
        return text if row[q] <= result.notes["alpha"] and (row[low] > 0 or row[high] < 0) else f"*{text}*"

    for row in rows[:MOST]:
        mean = cell(row, "mean_sd", "mean_low", "mean_high", "q_mean")
        slope = cell(row, "J", "J_low", "J_high", "q_J")
        lines.append(
            f"| {row['source']} {row['end']} | {row['target']} | {row['lag']} | {mean} | {row['q_mean']:.2g} | {slope} "
            f"| {row['q_J']:.2g} | {row['steps']} | {row['episodes']}{few(row['episodes'])} |"
        )
    return lines if len(rows) <= MOST else [*lines, "", f"{len(rows) - MOST} weaker ones are in extremes.csv."]


def _distinct(result: Result) -> str:
    """Which actions were tried, and what counts as one."""
    groups = result.notes["actions"]
    said = f"{len(groups)} different actions were tried"
    if parts := result.notes.get("parts"):
        said = (
            f"An action has {len(parts)} parts ({', '.join(parts)}): their {len(groups)} different choices were tried, "
            "one at a time, with the other parts as they were"
        )
    alike = [f"{' = '.join(names)}" for names in groups if len(names) > 1]
    ended = result.scalars["branches_ended"]["value"]
    return (
        f"{said}{' (' + '; '.join(alike) + ')' if alike else ''}; after {100 * ended:.2g} % of them the simulated "
        "episode ends before the target, and the simulator goes on all the same."
    )


def _cells(row: Mapping[str, Any]) -> str:
    verb = "raises" if row["J"] > 0 else "lowers"
    signs = {True: "agree", False: "differ", None: ""}[row["agree"]]
    cells = (
        f"{row['source']} at t-{row['lag']} {verb} {row['target']}",
        str(row["name"]).replace("|", "\\|"),
        f"{row['J']:.3g} [{row['J_low']:.3g}, {row['J_high']:.3g}]",
        f"{row['J_straight_through']:.3g}",
        f"{row['J_direct']:.3g}{'*' if row['path'] in ('both', 'direct') else ''}",
        f"{row['J_through_world']:.3g}{'*' if row['path'] in ('both', 'through world') else ''}",
        f"{row['J_through_world_straight_through']:.3g}",
        f"{row['q']:.2g}",
        f"{row['r']:.2f}",
        f"{row['q_r']:.2g}",
        signs,
        f"{row['episodes']}{few(row['episodes'])}",
    )
    return f"| {' | '.join(cells)} |"
