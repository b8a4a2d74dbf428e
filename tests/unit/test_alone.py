"""What may be said of a change without a simulator: statements about the real world, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from core.stats import band_of
from envs.planted import PlantedOptions, PlantedWorld, planted_simulator
from envs.planted_truth import truth
from validation.hypotheses.grammar import Hypothesis
from validation.interventions.alone import CRITERIA, alone, by_unit, claim_of, table_of, verdict_of
from validation.interventions.claims import Picked, claims_of
from validation.interventions.options import StudyOptions
from validation.interventions.statistics import Controls

CHANGE = Hypothesis("shift", "ica", (0,), (2.0,))
STARTS = 256  # of fewer nothing says that there is no effect
OPTIONS = StudyOptions(starts=40, horizon=4, controls=39, latest_start=8)


def judged(
    effect: float, *, twins: float = 0.0, null: float = 0.2, memory: float = 0.0, change: Hypothesis = CHANGE
) -> dict[str, Any]:
    """The row of an effect on value@4, in spreads, whose controls have ``null`` and unaltered twins differ."""
    rng = np.random.default_rng(0)
    unaltered = rng.standard_normal(STARTS)
    unaltered /= unaltered.std()
    own = (effect + 0.1 * rng.standard_normal(STARTS))[None]
    controls = Controls({"value@4": null * rng.standard_normal((78, STARTS))}, np.repeat([0, 1], 39), {})
    (row,) = table_of(
        [change], {"value@4": unaltered}, {"value@4": own}, {"value@4": np.full((1, STARTS), memory)},
        {"value@4": np.full(STARTS, twins)}, np.arange(STARTS), {change: controls}, (), OPTIONS, rng,
    )  # fmt: skip
    return row


@pytest.mark.parametrize(
    ("case", "exists", "special", "verdict"),
    [
        ({"effect": 1.0}, "yes", "yes", "found"),
        ({"effect": 1.0, "null": 20.0}, "yes", "open", "open"),  # directions that occur do as much
        ({"effect": 0.0}, "no", "open", "no effect"),
        ({"effect": 1.0, "twins": 2.0}, "no", "yes", "no effect"),  # unaltered runs differ by more
    ],
)
def test_a_claim_exists_and_is_special_or_not(case: dict[str, float], exists: str, special: str, verdict: str) -> None:
    row = judged(**case)
    assert (row["exists"], row["special"], row["verdict"]) == (exists, special, verdict)
    assert row["size"] == row["needed"] == "not asked" and "foretold" not in row


def test_what_runs_through_memory_is_no_effect_through_the_world() -> None:
    assert judged(1.0, memory=1.0)["through_world"] == "no" and judged(1.0)["through_world"] == "yes"


def test_a_claim_of_the_memory_alone_says_so() -> None:
    """A value that was read from pushed states, with no reward changed, was said to be seen in the real world."""
    for memory, said in ((1.0, True), (0.0, False)):
        picked = [Picked([(CHANGE, "value@4")], "one direction")]
        (claim,) = claims_of([judged(1.0, memory=memory)], picked, True, verdict_of, claim_of)
        assert claim["text"].endswith("; it is of the memory alone, not through the world.") == said


def test_a_claim_says_what_was_not_asked() -> None:
    row = judged(1.0)
    (claim,) = claims_of([row], [Picked([(CHANGE, "value@4")], "one direction")], True, verdict_of, claim_of)
    assert claim["parts"]["needed"] == {"answer": "not asked", "words": "there is no simulator to compare with"}
    assert "nothing was foretold" in claim["text"] and "confirmed" not in claim["text"] and "Not asked" in CRITERIA
    (none,) = claims_of([], [Picked([(CHANGE, "value@4")], "one direction")], True, verdict_of, claim_of)
    assert none["verdict"] == "open" and "no claim" in none["text"]


def test_the_band_of_the_controls_leaves_out_a_twentieth_of_their_like() -> None:
    rng = np.random.default_rng(0)
    rng.standard_normal(2 * STARTS)  # as ``judged`` draws
    draws_C = 0.2 * rng.standard_normal((78, STARTS)).mean(1)
    row = judged(1.0)
    assert row["random_n"] == 78 and (row["random_low"], row["random_high"]) == pytest.approx(band_of(draws_C, 0.05))


def test_starts_of_a_unit_count_as_one() -> None:
    assert by_unit(np.array([[1.0], [3.0], [5.0]]), np.array([7, 7, 2])).tolist() == [[5.0], [2.0]]


@pytest.mark.parametrize(
    ("effect", "says", "size", "verdict"),
    [
        (1.0, 1.1, "as foretold", "confirmed"),
        (1.0, 4.0, "wrong", "refuted"),  # a quarter of what was said
        (1.0, -1.0, "wrong", "refuted"),  # the other way
        (0.0, 1.0, "wrong", "refuted"),
        (0.0, 0.0, "as foretold", "no effect"),
    ],
)
def test_a_claim_that_says_what_its_quantity_becomes_is_held_to_it(
    effect: float, says: float, size: str, verdict: str
) -> None:
    """What is foretold at a start is that number less what the quantity is there unaltered."""
    change = replace(CHANGE, on="value", says=says)
    rng = np.random.default_rng(0)
    unaltered = np.where(np.arange(STARTS) % 2, 1.0, -1.0)
    own = (effect + 0.1 * rng.standard_normal(STARTS))[None]
    controls = Controls({"value@4": 0.2 * rng.standard_normal((78, STARTS))}, np.repeat([0, 1], 39), {})
    nothing = np.zeros((1, STARTS))
    (row,) = table_of(
        [change], {"value@4": unaltered}, {"value@4": own}, {"value@4": nothing}, {"value@4": nothing[0]},
        np.arange(STARTS), {change: controls}, (), OPTIONS, rng,
    )  # fmt: skip
    assert row["foretold"] == pytest.approx(float((says - unaltered).mean()))
    (claim,) = claims_of([row], [Picked([(change, "value@4")], "one direction")], True, verdict_of, claim_of)
    assert (claim["size"], claim["verdict"]) == (size, verdict)
    assert claim["needed"] == "not asked" and "said" in claim["text"]


def test_a_choice_of_the_real_world_may_be_made_on_fewer_starts_and_by_what_runs_through_it() -> None:
    options = PlantedOptions(kind="mediated", hazard=0.0)
    agent, basis = planted_simulator(options).agent, truth(options).basis
    made: list[list[int]] = [[], []]

    def pool(of: list[int]) -> Callable[[int], PlantedWorld]:
        def make(slots: int) -> PlantedWorld:
            of.append(slots)
            return PlantedWorld(options, slots)

        return make

    asked = replace(
        OPTIONS, directions=(0,), amounts=(2.0,), starts=40, choosing_starts=32, choose_by="world", horizon=4
    )
    result = alone(agent, (pool(made[0]), pool(made[1])), basis, asked, torch.device("cpu"))
    assert set(made[0]) >= {40} and set(made[1]) <= {32} and len(result.arrays["h"]) == 40
    (claim,) = [claim for claim in result.notes["claims"] if claim["headline"]]
    assert claim["special_by_world"] and claim["quantity"].partition("@")[0] in ("value", "reward", "return")


def test_every_change_in_words_is_answered() -> None:
    """One that has no controls was left out without a word, and of a direction's own later coordinate it was said that
    it does not vary."""
    options = PlantedOptions(kind="mediated", hazard=0.0)
    agent, basis = planted_simulator(options).agent, truth(options).basis
    words = ("keep_only 0 on value", "keep_only 1", "shift 0 by +2 on planted:0", "shift 0 by +2 on value")
    pools = (lambda slots: PlantedWorld(options, slots),) * 2
    result = alone(agent, pools, basis, replace(OPTIONS, hypotheses=words), torch.device("cpu"))
    claims = {claim["hypothesis"]: claim for claim in result.notes["claims"]}
    kept = claims["keep_only planted:0 on value"]
    assert kept["quantity"] == "value@4" and kept["n"] == 40 and kept["special"] == "not asked"
    assert kept["parts"]["special"]["words"] == "it has no controls"
    assert "names none" in claims["keep_only planted:1"]["text"]
    assert "a direction that it changes itself" in claims["shift planted:0 by +2 on planted:0"]["text"]
    assert claims["shift planted:0 by +2 on value"]["special"] != "not asked" and len(claims) == len(words)
