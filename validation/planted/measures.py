"""What is measured in the planted worlds, and what must be reached: the words of ``validation.planted``'s table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from core.stats import ALPHA

CONTROL = "control: "  # what the names of methods broken on purpose begin with


class Target(NamedTuple):
    """What a score must reach: between ``low`` and ``high``, ends included."""

    low: float
    high: float

    @property
    def text(self) -> str:
        if np.isinf(self.high):
            return f">= {self.low:g}"
        return f"<= {self.high:g}" if np.isinf(self.low) else f"{self.low:g} to {self.high:g}"


def at_least(x: float) -> Target:
    return Target(x, np.inf)


def at_most(x: float) -> Target:
    return Target(-np.inf, x)


class Measure(NamedTuple):
    """What is measured, the same for people who do not know these methods, and what must be reached (None: it is only
    reported).  A control has the target of what it breaks."""

    name: str
    words: str
    target: Target | None = None


LEVEL = Target(0.03, 0.07)  # of what happens in 5 % of cases
RECOVERY = Measure("direction recovery", "finds the planted directions (|cos| of the worst)", at_least(0.98))
EDGES = Measure("edge AUROC", "finds what drives what, and nothing else (AUROC)", at_least(0.99))
CORRELATION_EDGES = Measure("edge AUROC of correlation", "the same asked of correlation (AUROC)")
SIGNS = Measure("sign accuracy", "says raises for raises, lowers for lowers", at_least(0.99))
FALSE_EDGES = Measure("false edges", "share of its arrows that are not there", at_most(ALPHA))
CUT = Measure("left with the world cut", "effect through the world that is left when the world is cut", at_most(1e-6))
ARROWS = Measure("true arrows found", "share of the true arrows that it finds", at_least(0.9))
MASS = Measure("saliency on the cause", "share of saliency on what is really looked at", at_least(0.99))
TWINS = Measure(
    "difference of twins", "how far simulators differ that are alike on every action (in effects)", at_most(1e-6)
)
CLOSED_FORM = Measure("error of the closed form", "largest error against the closed form", at_most(1e-6))
FIRST_ORDER = Measure("first-order error", "largest error of the first-order prediction", at_most(1e-6))
EFFECT_ERROR = Measure("effect error", "predicted minus observed effect, in spreads", at_most(0.05))
CAUSE_FOUND = Measure("cause named", "worlds in which the cause is named", at_least(0.99))
ACCUSED = Measure("nuisance accused", "worlds in which the innocent direction is accused", at_most(0.01))
ELSEWHERE = Measure("effect elsewhere", "effect at a wrong time or in a wrong behaviour", at_most(1e-6))
AGREEMENT = Measure("behaviours found (ARI)", "behaviours found (adjusted Rand index)", at_least(0.95))
AGREEMENT_ERROR = Measure(
    "ARI against analytic", "its distance from the analytic value, in standard errors", Target(-1, 1)
)
# 10 worlds of 8 directions and 3 independent contrasts of behaviours are 240 intervals: 0.95 +- 3 standard errors.
D_COVERAGE = Measure(
    "Cohen's d intervals", "95 % intervals of Cohen's d that hold the analytic value", Target(0.91, 0.99)
)
HISTORIES = Measure(
    "behaviours of histories (ARI)", "the same, from histories of six steps and three lags", at_least(0.9)
)
R2_CAUSE = Measure("R2 of the cause", "how well the cause can be decoded (R2)", at_least(0.9))
R2_NUISANCE = Measure("R2 of the nuisance", "how well the innocent direction can be decoded (R2)", at_least(0.9))
FALSE_ALARMS = Measure("false alarms", "false alarms where nothing acts (nominal 5 %)", LEVEL)
MISSES = Measure("intervals that miss", "95 % intervals that miss the truth", LEVEL)
CONFIRMED = Measure("claims without an effect", "claims confirmed where nothing acts", at_most(LEVEL.high))
CHOICE = Measure(
    "chosen directions special", "largest of directions that mean nothing called special", at_most(LEVEL.high)
)
FOUND = Measure("effects found", "effects that are there: found, as large as foretold", at_least(0.95))
EXISTING = Measure("effects that are not there", "changes that do nothing: said to do something", at_most(ALPHA))
NO_EFFECT = Measure("no effect, alone", "changes that do nothing: 'no effect, alone, at this dose'", at_least(0.9))
REFUTED = Measure("right predictions refuted", "right predictions that are refuted", at_most(ALPHA))
WRONG_CONFIRMED = Measure("wrong predictions confirmed", "wrong predictions that are confirmed", at_most(ALPHA))
FORETOLD_WITHOUT = Measure(
    "foretold without a world", "'the simulator foretold it' of one that knows no world", at_most(0.0)
)
FORETOLD_RIGHTLY = Measure(
    "foretold through the world", "'the simulator foretold it' of a true effect through the world", at_least(0.8)
)
FORETOLD = Measure("foretold", "'the simulator foretold it'")
POWER = Measure("power", "small effects that are noticed")
MEASURES = (
    RECOVERY, EDGES, CORRELATION_EDGES, SIGNS, ARROWS, FALSE_EDGES, CUT, TWINS, MASS, CLOSED_FORM, FIRST_ORDER,
    EFFECT_ERROR, CAUSE_FOUND, ACCUSED, ELSEWHERE, AGREEMENT, AGREEMENT_ERROR, D_COVERAGE, HISTORIES, R2_CAUSE,
    R2_NUISANCE, FALSE_ALARMS, MISSES, CONFIRMED, CHOICE, FOUND, EXISTING, NO_EFFECT, REFUTED, WRONG_CONFIRMED,
    FORETOLD_WITHOUT, FORETOLD_RIGHTLY, FORETOLD, POWER,
)  # fmt: skip
# How often something happens: where each number is 0 or 1, the interval is that of a share.
RATES = (
    CAUSE_FOUND, ACCUSED, FALSE_ALARMS, MISSES, CONFIRMED, CHOICE, FOUND, EXISTING, NO_EFFECT, REFUTED,
    WRONG_CONFIRMED, FORETOLD_WITHOUT, FORETOLD_RIGHTLY, FORETOLD, POWER,
)  # fmt: skip


class Key(NamedTuple):
    """What a number is about."""

    world: str
    method: str
    measure: Measure


Found = dict[Key, list[float]]


def significant(p: np.ndarray) -> np.ndarray:
    """p <= ALPHA, whatever the rounding of a count over a count."""
    out: np.ndarray = p <= ALPHA + 1e-12
    return out
