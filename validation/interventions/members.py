"""What the members of an ensemble foretell of a claim, and whether they agree.

The first simulator chooses, and the five statements are about what it foretells; the others are run on from the same
starts, with the same change and the same action noise.  Simulators of one agent that were trained apart know the same
world: where they foretell different things, at least one of them does not know it.

Per start: f_1, what the first member foretells; f_m, what another does.  A difference of interest is at least the
smallest size of interest, and at least half of what the first foretells.

agree           yes: the 90 % interval of the mean of f_m - f_1 lies inside that size for every m, starts that were not
                met included, each with the largest change that the quantity could show (``core.stats.not_met``).  no:
                the 95 % interval lies beyond it for some m.  Else open.

N starts (independent units), M members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.stats import Estimate, means, not_met
from validation.hypotheses.grammar import Hypothesis
from validation.interventions.statistics import Effects, about, changed_share, reach_of
from validation.interventions.verdicts import DRAWS, LEAST_STARTS, NO, OPEN, YES

SAID = {
    YES: "the members of the ensemble agree", NO: "the members of the ensemble disagree",
    OPEN: "whether the members of the ensemble agree is open",
}  # fmt: skip


class Members(NamedTuple):
    """What every member foretells of a claim, and whether they agree."""

    answer: str
    foretold: list[Estimate]  # of every member, the first one first


def agreement_of(foretold_NM: np.ndarray, smallest: float, reach: float, rng: np.random.Generator) -> Members:
    """foretold: what each member foretells at every start, in the quantity's own unit, as ``smallest`` is, and
    ``reach``, the largest change that the quantity could show."""
    less_NM = foretold_NM[:, 1:] - foretold_NM[:, :1]
    found = means(np.concatenate([foretold_NM, less_NM], 1), rng=rng, draws=DRAWS)
    count = foretold_NM.shape[1]
    wide, narrow = found.estimates(), found.estimates(0.90)
    bound = max(smallest, abs(wide[0].value) / 2)
    answer = OPEN
    if len(foretold_NM) >= LEAST_STARTS:
        if any(max(e.low, -e.high) > bound for e in wide[count:]):
            answer = NO
        else:
            apart = [not_met(e, reach, 0.90) for e in narrow[count:]]
            answer = YES if all(max(-e.low, e.high) < bound for e in apart) else OPEN
    return Members(answer, wide[:count])


def foretold_of(claim: Mapping[str, Any], effects: Effects, hypotheses: Sequence[Hypothesis]) -> np.ndarray | None:
    """What each member foretells of a claim at the starts that it is about [N, M]; None where it claims nothing."""
    g = next(i for i, h in enumerate(hypotheses) if h.name == claim["hypothesis"])
    runs = [effects.foretold["own"], *effects.members]
    if "quantity" in claim:
        q = claim["quantity"]
        here = about(effects.seen["own"][q][g])
        return np.stack([run[q][g][here] for run in runs], 1) if len(here) else None
    if "event" not in claim:
        return None
    q = next(name for name in effects.unaltered if name.partition("@")[0] == f"event:{claim['event']}")
    here = about(effects.seen["own"][q][g])
    found = [changed_share(run[q][g][here], effects.unaltered[q][here], claim["role"])[0] for run in runs]
    return np.stack(found, 1) if len(found[0]) else None


def _reach_of(claim: Mapping[str, Any], effects: Effects, hypotheses: Sequence[Hypothesis]) -> float:
    """The largest change that what a claim is about could show, in any member: of an event 1."""
    if "quantity" not in claim:
        return 1.0
    g, q = next(i for i, h in enumerate(hypotheses) if h.name == claim["hypothesis"]), claim["quantity"]
    runs = (effects.foretold["own"], *effects.members)
    return reach_of(q, effects.expected[q], np.stack([run[q][g] for run in runs]))


def tell(
    claims: Sequence[dict[str, Any]], effects: Effects, hypotheses: Sequence[Hypothesis], share: float,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    """Says of every claim, in it, whether the members agree; a row a claim and member.  share: the smallest share of
    events of interest."""
    rows: list[dict[str, Any]] = []
    for claim in claims if effects.members else ():
        foretold_NM = foretold_of(claim, effects, hypotheses)
        if foretold_NM is None:
            continue
        unit = claim.get("unit", "share of the starts")
        reach = _reach_of(claim, effects, hypotheses)
        found = agreement_of(foretold_NM, float(claim.get("smallest", share)), reach, rng)
        told = ", ".join(f"{e.value:+.3g} [{e.low:+.3g}, {e.high:+.3g}]" for e in found.foretold)
        claim["members"] = found.answer
        claim["parts"]["members"] = {"answer": found.answer, "words": f"foretold, member by member: {told} {unit}"}
        claim["text"] = f"{claim['text'][:-1]}; {SAID[found.answer]} (foretold {told} {unit})."
        rows += [
            {"hypothesis": claim["hypothesis"], "of": claim.get("quantity", f"{claim.get('role')} for "
             f"{claim.get('event')}"), "member": m, "foretold": e.value, "low": e.low, "high": e.high, "n": e.n,
             "unit": unit, "agree": found.answer}
            for m, e in enumerate(found.foretold, 1)
        ]  # fmt: skip
    return rows
