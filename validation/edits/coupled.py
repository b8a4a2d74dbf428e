"""Coupling tried in the real game: object -> direction -> action.

A coupling run draws effects of one direction on another (edges).  For an edit and an edge: does the edit move the
source; does it move the target as many steps later as the edge is long, the action, the value; and is less of that left
where the source alone is set back to what it was without the edit?  *Restored* is how much nearer to the unedited run
that brings a quantity, per start: |change by the edit| - |change that is left|.  Beside it stand random directions,
differences between recorded states, each moved by as much as setting the source back moves h.

carries   yes: the source is moved (*exists*), the restored mean lies beyond the smallest size of interest, q <= 0.05
          over all rows of the table, and it is *special*: q <= 0.05 against the random directions, over the rows of
          sources that are moved.  (R directions single out one of so many rows where R + 1 >= 20 times as many.)
          no: the source is not moved, or nothing of interest is restored.  Else open.

N starts, R random directions, H hidden.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from analysis.coupling.edges import strongest_pairs
from analysis.shared.sources import check_made_from
from core import artefacts
from core.artefacts import Result
from core.contracts import Intervention, UserError
from core.directions import Basis, direction_ids, load_basis
from core.interventions import AtSteps, Resample
from core.stats import ALPHA, Estimate, band_of, benjamini_hochberg, few, means, not_met
from envs.procgen_edits import Edit
from validation.edits.course import EditedWorld, Run
from validation.hypotheses.changes import Redirect
from validation.hypotheses.frames import own_frame, recorded_frames
from validation.interventions import verdicts
from validation.interventions.statistics import rank_p, reach_of, spread_of
from validation.interventions.verdicts import DRAWS, NO, OPEN, YES
from validation.paired.course import Actions, Measures, in_words, policy_of, quantities, unit_of

SHARES = 0.05  # smallest change of interest of a policy, in total variation


class Edge(NamedTuple):
    """One direction's effect on another, as a coupling run drew it."""

    source: int
    target: int
    lag: int  # steps
    behaviour: str
    effect: float  # J


def load_edges(path: Path, basis: Path | None, most: int, agent: str) -> tuple[Path, Basis, tuple[Edge, ...]]:
    """(where the basis is, the basis, its ``most`` strongest edges between different directions) of a coupling run.

    basis: where the hidden-states run lies that it was made from; None: where it lay.  agent: fingerprint.  UserError.
    """
    manifest = artefacts.read_manifest(path, "coupling")
    if manifest["facts"]["agent"] != agent:
        raise UserError(f"{path}: couplings of agent {manifest['facts']['agent']}, not of {agent}")
    where = (path / manifest["inputs"]["hidden_states"]["path"]).resolve() if basis is None else basis
    artefacts.read_manifest(where)
    check_made_from(path, "hidden_states", where)
    result = Result.load(path)
    kind = result.notes["basis_kind"]
    rows = strongest_pairs(result.tables["edges"])[:most]
    if not rows:
        raise UserError(f"{path}: it drew no effect of one direction on another, so there is nothing to try")
    ids = [direction_ids([str(row["source"]), str(row["target"])], kind, str(path)) for row in rows]
    edges = [Edge(i, j, int(row["lag"]), row["name"], row["J"]) for (i, j), row in zip(ids, rows, strict=True)]
    return where, load_basis(where, kind, agent), tuple(edges)


class Tried(NamedTuple):
    """What an edit and one way of setting back did, of one edge: mean estimates and the random directions' means."""

    row: dict[str, Any]
    moved: tuple[Estimate, Estimate, float]  # of the source: 95 %, 90 %, p
    restored: tuple[Estimate, Estimate, float]
    random_R: np.ndarray
    unit: float
    smallest: float


def tried(
    world: EditedWorld, change: str, edits: Sequence[Edit | None], unedited: Run, edited: Run,
    basis: Basis, edges: Sequence[Edge], count: int, smallest: float, rng: np.random.Generator,
    generator: torch.Generator,
) -> list[Tried]:  # fmt: skip
    """Every edge for one edit.  edited: its whole run; count: random directions; smallest: in spreads."""
    here, h, actions = edited.rows_N, unedited.course.h_RTH, world.agent.spec.distinct_actions()
    assert h is not None
    plain, whole = (_seen(run, actions, basis) for run in (unedited, edited))
    out = []
    for source in dict.fromkeys(edge.source for edge in edges):
        back = Resample(basis, (source,), h[:, 0])
        own = own_frame(basis, (source,))
        frames = recorded_frames(h[:, 0], basis, 1, count, generator)
        changes: list[Intervention] = [back, *(Redirect(back, basis, own, frame) for frame in frames)]
        runs = (world.course(edits, intervene=(AtSteps(some, 0, 1),)) for some in changes)
        left = [_seen(run, actions, basis) for run in runs]
        before_N, after_N = (some[COORDINATES][here, 0, source] for some in (plain, whole))
        moved = _mean(after_N - before_N, reach_of(basis.names[source], before_N, after_N - before_N), rng)
        asked: list[tuple[str, Edge | None]] = [(q, None) for q in plain if q != COORDINATES]
        asked += [(f"{basis.names[e.target]}@{e.lag}", e) for e in edges if e.source == source]
        for q, edge in asked:
            base, *others = (some[q] if edge is None else some[COORDINATES][:, edge.lag, edge.target]
                             for some in (plain, whole, *left))  # fmt: skip
            unit = 1.0 if q.startswith("policy") else spread_of(base)
            if not unit:
                continue
            reach = 1.0 if q.startswith("policy") else reach_of(q, base, others[0] - base) / unit
            edited_N, *left_N = (_apart(x, base)[here] / unit for x in others)
            restored_RN = edited_N - np.stack(left_N)
            row: dict[str, Any] = {"edit": change, "source": basis.names[source], "quantity": q}
            row |= {"unit": "total variation" if q.startswith("policy") else unit_of(q), "n": int(here.sum())}
            if edge is not None:
                row |= {"target": basis.names[edge.target], "lag": edge.lag, "behaviour": edge.behaviour,
                        "J": edge.effect}  # fmt: skip
            row["moved_by_edit"] = float(edited_N.mean() * unit)
            least = SHARES if q.startswith("policy") else smallest
            restored = _mean(restored_RN[0], reach, rng)
            out.append(Tried(row, moved, restored, restored_RN[1:].mean(1), unit, least))
    return out


COORDINATES = "coordinates"


def _seen(run: Run, actions: Actions, basis: Basis) -> dict[str, np.ndarray]:
    """The policy [N, actions] and the value [N], at once and later, and the coordinates [N, T, K]."""
    assert run.course.h_RTH is not None
    found = {q: x.cpu().double().numpy() for q, x in quantities(run.course, Measures(actions)).items()}
    values = {q: x for q, x in found.items() if q.partition("@")[0] == "value"}
    coordinates = basis.project(run.course.h_RTH) * run.course.weight_RT[..., None]  # 0 where the episode has ended
    return policy_of(found) | values | {COORDINATES: coordinates.cpu().double().numpy()}


def _apart(x: np.ndarray, base: np.ndarray) -> np.ndarray:
    """How far a quantity [N] is, or a policy [N, actions], in total variation."""
    far = np.abs(x - base)
    return far if far.ndim == 1 else 0.5 * far.sum(1)


def _mean(x_N: np.ndarray, reach: float, rng: np.random.Generator) -> tuple[Estimate, Estimate, float]:
    """(95 %, 90 % with what was not met, p) of a mean change, which is ``reach`` at most."""
    found = means(x_N[:, None], rng=rng, draws=DRAWS)
    return found.estimates()[0], not_met(found.estimates(0.90)[0], reach, 0.90), float(found.p()[0])


def judged(some: Sequence[Tried], smallest: float) -> list[dict[str, Any]]:
    """The rows of the table ``coupling``; one family of tests."""
    # The same move of a source stands in several rows, and is one test.
    each = {(t.row["edit"], t.row["source"]): t.moved[2] for t in some}
    q_moved = dict(zip(each, benjamini_hochberg(list(each.values())), strict=True))
    moves = [verdicts.exists(t.moved[0], t.moved[1], float(q_moved[t.row["edit"], t.row["source"]]), smallest)
             for t in some]  # fmt: skip
    q_restored = benjamini_hochberg([t.restored[2] for t in some])
    # Only what moves can carry, and whether it moves is another question than whether it is special.
    special = [
        rank_p(t.restored[0].value, t.random_R) if m == YES else np.nan for t, m in zip(some, moves, strict=True)
    ]
    family = moves.count(YES)
    rows = []
    for t, q, p, qs, is_moved in zip(some, q_restored, special, benjamini_hochberg(special), moves, strict=True):
        moved, restored = t.moved[0], t.restored[0]
        is_restored = verdicts.exists(restored, t.restored[1], float(q), t.smallest)
        is_restored = NO if is_restored == YES and restored.value < 0 else is_restored  # it is further off instead
        answers = (is_moved, is_restored, verdicts.special(float(qs)))
        low, high = band_of(t.random_R, ALPHA)
        row = t.row | {
            "source_moved": moved.value, "source_low": moved.low, "source_high": moved.high,
            "source_q": float(q_moved[t.row["edit"], t.row["source"]]),
            "restored": restored.value * t.unit, "low": restored.low * t.unit, "high": restored.high * t.unit,
            "q": float(q), "smallest": t.smallest * t.unit, "random_low": low * t.unit, "random_high": high * t.unit,
            "random_n": len(t.random_R), "special_p": float(p), "special_q": float(qs), "moves": is_moved,
            "restores": is_restored, "special": answers[2],
            "carries": YES if set(answers) == {YES} else NO if NO in answers else OPEN,
        }  # fmt: skip
        rows.append(row | {"sentence": sentence(row) + one_of_many(row, family)})
    return rows


def one_of_many(row: Mapping[str, Any], family: int) -> str:
    """What is said of a row that is special by itself, and not as one of a family that so few directions can tell."""
    if row["special"] != OPEN or row["special_p"] > ALPHA:
        return ""
    return (
        f" It restores more than all but {row['special_p']:.2g} of the random directions; as one of {family} rows it "
        f"is not told from them (q = {row['special_q']:.2g}): "
        f"--random_directions {math.ceil(family / ALPHA) - 1} could."
    )


def sentence(row: Mapping[str, Any]) -> str:
    """A row in words."""
    q = row["quantity"]
    when = f" over steps {q.partition('@')[2].replace('..', ' to ')} after" if "@" in q else ""
    what = f"the probabilities of actions{when}" if q.startswith("policy") else in_words(q)
    return (
        f"'{row['edit']}' moves {row['source']} by {row['source_moved']:+.3g} [{row['source_low']:+.3g}, "
        f"{row['source_high']:+.3g}] and {what} by {row['moved_by_edit']:.3g}; {row['source']} set back, "
        f"{row['restored']:+.3g} [{row['low']:+.3g}, {row['high']:+.3g}] of that is restored (n = {row['n']}"
        f"{few(row['n'])}; random directions {row['random_low']:+.3g} to {row['random_high']:+.3g}): "
        f"{row['source']} carries it: {row['carries']}."
    )
