"""The surviving edges of a coupling as a table and as a page to read, with the part that each effect has.

An effect is direct (along the agent's memory alone), through the world (the agent acts, the world answers,
the agent sees it), or both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.artefacts import Result

PATHS = ("", "_agent_only", "_through_world")  # whole = agent only + through world
PAGE = "edges.md"
MOST = 500  # edges on the page; the table has them all


def label(names: Mapping[Any, str], behaviour: int) -> str:
    """``behaviour 5``, with its name in brackets where it has one of its own."""
    plain = f"behaviour {behaviour}"
    name = " ".join(str(names.get(str(behaviour), "")).split()).removeprefix(plain).lstrip(": ")
    return f"{plain} ({name})" if name else plain


def edges(result: Result, alpha: float) -> list[dict[str, Any]]:
    """The entries whose mean Jacobian is significant, the strongest first, each with a sentence.

    ``agree``: whether Jacobian and correlation have the same sign, None where the correlation is not significant.
    """
    a = result.arrays
    rows = []
    for b, at, i, j in np.argwhere(a["q_jacobian"] <= alpha):
        here = (b, at, i, j)
        behaviour = int(a["behaviours"][b])
        row: dict[str, Any] = {
            "behaviour": behaviour,
            "name": label(result.notes["names"], behaviour),
            "lag": int(a["lags"][at]),
            "source": int(i),
            "target": int(j),
        }
        for path, column in zip(PATHS, ("J", "J_direct", "J_through_world"), strict=True):
            row[column] = float(a[f"jacobian{path}"][here])
            row[f"{column}_low"] = float(a[f"jacobian{path}_low"][here])
            row[f"{column}_high"] = float(a[f"jacobian{path}_high"][here])
        row["q"] = float(a["q_jacobian"][here])
        row["q_direct"] = float(a["q_jacobian_agent_only"][here])
        row["q_through_world"] = float(a["q_jacobian_through_world"][here])
        row["path"] = _path(row["q_direct"] <= alpha, row["q_through_world"] <= alpha)
        row["r"], row["q_r"] = float(a["correlation"][here]), float(a["q_correlation"][here])
        row["agree"] = bool(np.sign(row["J"]) == np.sign(row["r"])) if row["q_r"] <= alpha else None
        row["n"], row["episodes"] = int(a["samples"][b]), int(a["sample_episodes"][b])
        row["sentence"] = sentence(row)
        rows.append(row)
    return sorted(rows, key=lambda row: -abs(float(row["J"])))


def _path(direct: bool, world: bool) -> str:
    """Which parts are significant by themselves."""
    if direct and world:
        return "both"
    return "direct" if direct else "through world" if world else "neither alone"


def sentence(row: Mapping[str, Any]) -> str:
    """An edge in words."""
    verb = "raises" if row["J"] > 0 else "lowers"
    target = "itself" if row["source"] == row["target"] else f"direction {row['target']}"
    r = "not defined" if math.isnan(row["r"]) else f"{row['r']:.2f}"
    return (
        f"direction {row['source']} at t-{row['lag']} {verb} {target} in {row['name']}: J = {row['J']:.3g}, "
        f"r = {r}, q = {row['q']:.2g}; direct {row['J_direct']:.3g} (q = {row['q_direct']:.2g}), "
        f"through the world {row['J_through_world']:.3g} (q = {row['q_through_world']:.2g})"
    )


def strongest_pairs(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of rows sorted by strength the first of every pair of different directions: its own past is no news, and one
    pair is found at many lags and in many behaviours."""
    found: dict[tuple[int, int], Mapping[str, Any]] = {}
    for row in rows:
        if row["source"] != row["target"]:
            found.setdefault((row["source"], row["target"]), row)
    return list(found.values())


def page(result: Result) -> str:
    """All edges as Markdown, those between different directions first, by strength."""
    rows, alpha = result.tables["edges"], result.notes["alpha"]
    between = [row for row in rows if row["source"] != row["target"]]
    own = [row for row in rows if row["source"] == row["target"]]
    lines = [
        "# What drives what",
        "",
        f"In the {result.notes['basis_kind']} basis: {len(between)} effects of one direction on another, {len(own)} of "
        f"one on itself, with q ≤ {alpha:g} over all behaviours, lags and entries.",
        "",
        "J is the mean change of the target's coordinate for a small change of the source's, in the simulator, with a "
        "95 % interval over episodes: `whole` = `direct` (the agent's memory alone) + `through world` (the agent acts, "
        "the world answers, the agent sees it). * marks a part with q ≤ "
        f"{alpha:g}. r is the correlation of the two coordinates that many steps apart; where it is significant, "
        "`signs` says whether it agrees with J. A Jacobian is an effect as far as the simulator is right; it is a "
        "hypothesis to test by intervention.",
    ]
    for said in (*result.notes["left_out"], *result.notes["resolution"]):
        lines += ["", f"Note: {said}."]
    for title, some in (("Between different directions", between), ("A direction's own past", own)):
        lines += ["", f"## {title}", ""]
        if not some:
            lines.append("None.")
            continue
        lines += [
            "| effect | in | J whole | J direct | J through world | q | r | q of r | signs | episodes |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *(_cells(row, alpha) for row in some[:MOST]),
        ]
        if len(some) > MOST:
            lines += ["", f"{len(some) - MOST} weaker ones are in edges.csv."]
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any], alpha: float) -> str:
    verb = "raises" if row["J"] > 0 else "lowers"
    signs = {True: "agree", False: "differ", None: ""}[row["agree"]]
    cells = (
        f"{row['source']} at t-{row['lag']} {verb} {row['target']}",
        str(row["name"]).replace("|", "\\|"),
        f"{row['J']:.3g} [{row['J_low']:.3g}, {row['J_high']:.3g}]",
        f"{row['J_direct']:.3g}{'*' if row['q_direct'] <= alpha else ''}",
        f"{row['J_through_world']:.3g}{'*' if row['q_through_world'] <= alpha else ''}",
        f"{row['q']:.2g}",
        f"{row['r']:.2f}",
        f"{row['q_r']:.2g}",
        signs,
        str(row["episodes"]),
    )
    return f"| {' | '.join(cells)} |"
