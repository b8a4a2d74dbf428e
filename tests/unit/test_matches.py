"""Codes against descriptions of situations: found where planted, not where two slow things pass by each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.semantics.matches import matches, phi, read_descriptions
from analysis.semantics.states import States
from analysis.shared.events import parse_event
from core.artefacts import write_json
from core.contracts import UserError
from envs.procgen import ACTION_NAMES
from envs.procgen_truth import columns_of

EPISODES, STEPS, CODES = 40, 60, 5


def slow(rng: np.random.Generator, kinds: int, stay: float = 0.9) -> np.ndarray:
    """A Markov chain a row, int64 [EPISODES * STEPS]."""
    x_ET = rng.integers(kinds, size=(EPISODES, STEPS))
    for t in range(1, STEPS):
        x_ET[:, t] = np.where(rng.random(EPISODES) < stay, x_ET[:, t - 1], x_ET[:, t])
    return x_ET.ravel()


def states_of(code_N: np.ndarray) -> States:
    index_N2 = np.stack(np.divmod(np.arange(EPISODES * STEPS), STEPS), 1)
    none = np.zeros((len(code_N), 2))
    return States(none, none, code_N, none[:, 0], none[:, 0], index_N2, index_N2[:, 0] // 2, CODES)


def found(code_N: np.ndarray, *holds: np.ndarray, seed: int = 0) -> list[dict[str, Any]]:
    names = [str(i) for i in range(len(holds))]
    return matches(states_of(code_N), names, np.stack(holds, 1), least=0.3, draws=99, seed=seed)[0]


def test_phi_is_the_correlation_of_two_truths() -> None:
    rng = np.random.default_rng(0)
    code_N, holds_ND = rng.integers(3, size=50), rng.random((50, 2)) < 0.4
    holds_ND = np.concatenate([holds_ND, np.ones((50, 1), bool)], 1)
    found = phi(code_N, holds_ND, 4)
    for c in range(3):
        for d in range(2):
            assert found[c, d] == pytest.approx(np.corrcoef(code_N == c, holds_ND[:, d])[0, 1])
    assert np.isnan(found[3]).all() and np.isnan(found[:, 2]).all()  # a dead code; what always holds


def test_a_planted_match_is_found_and_what_is_never_seen_is_said() -> None:
    rng = np.random.default_rng(1)
    code_N = slow(rng, CODES)
    noisy_N = (code_N == 2) ^ (rng.random(len(code_N)) < 0.05)
    rows = found(code_N, noisy_N, slow(rng, 2) > 0, np.zeros(len(code_N), bool))
    assert [row["verdict"] for row in rows] == ["match", "none", "not seen"] and rows[0]["code"] == 2
    assert rows[0]["low"] < rows[0]["phi"] < rows[0]["high"] and rows[0]["of_the_code"] == pytest.approx(0.95, abs=0.02)
    assert rows[0]["of_the_description"] == pytest.approx((code_N == 2)[noisy_N].mean())


def test_what_nothing_can_match_says_why() -> None:
    """What always holds was called not seen."""
    rng = np.random.default_rng(1)
    code_N, last = slow(rng, CODES), np.arange(EPISODES * STEPS) >= (EPISODES - 1) * STEPS
    always, never = np.ones(len(code_N), bool), np.zeros(len(code_N), bool)
    rows = found(code_N, always, never, code_N == 2, last)
    assert [row["verdict"] for row in rows] == ["always", "not seen", "match", "not seen"]
    assert [row["verdict"] for row in found(np.zeros_like(code_N), code_N == 2, always)] == ["one code", "always"]


@pytest.mark.parametrize("kind", ["slow", "fast", "still"])
def test_what_has_nothing_to_do_with_codes_matches_none(kind: str) -> None:
    """Slow truths, fast ones, and ones that differ between episodes alone."""
    makes: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
        "slow": lambda rng: slow(rng, 2, 0.95) > 0, "fast": lambda rng: rng.random(EPISODES * STEPS) < 0.3,
        "still": lambda rng: np.repeat(rng.random(EPISODES) < 0.5, STEPS),
    }  # fmt: skip
    for seed in range(8):
        rng = np.random.default_rng(seed)
        (row,) = found(slow(rng, CODES, 0.95), makes[kind](rng), seed=seed)
        assert row["verdict"] in ("none", "open")


def test_what_holds_in_few_levels_is_not_told_to_have_no_match() -> None:
    """It holds in 2 of 20 levels, in each of which it goes with the code or not, like a coin: of many levels a
    correlation of .4.  Where it goes with it in neither, these two do not say that it never does."""
    t_N, level_N = np.tile(np.arange(STEPS), EPISODES), np.arange(EPISODES * STEPS) // (2 * STEPS)
    holds_N = (level_N < 2) & (t_N < 12)
    for goes in ([False, False], [True, False], [True, True]):
        with_it_N = holds_N & np.array([*goes, *[False] * 18])[level_N]
        code_N = np.where(with_it_N, 1, np.where((t_N % 20 == 19) & ~holds_N, 1, 0))
        (row,) = found(code_N, holds_N)
        assert row["verdict"] != "none" and row["low"] <= row["phi"] <= row["high"] > 0.3
        assert row["high"] <= 1  # a correlation's


def test_what_only_time_brings_together_is_no_match() -> None:
    rng = np.random.default_rng(3)
    t_N = np.tile(np.arange(STEPS), EPISODES)
    code_N = np.where(t_N < 12, 0, 1 + slow(rng, CODES - 1))
    early_N = t_N < 10
    (row,) = found(code_N, early_N)
    assert row["verdict"] == "by time" and row["code"] == 0 and row["p_exchanged"] > 0.5


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"game": "ninja"}, "must be"), ([], "must be"),
        ({"game": "ninja", "enough_steps": 1.5, "descriptions": {"a": "step > 3"}}, "enough_steps a whole number"),
        ({"game": "ninja", "enough_steps": 1, "descriptions": {}}, "must name expressions"),
        ({"game": "ninja", "enough_steps": 1, "descriptions": {"a": 3}}, "must name expressions"),
        ({"game": "ninja", "enough_steps": 1, "descriptions": {"7 a": "step > 3"}}, "must begin with a letter"),
        (
            {"game": "ninja", "enough_steps": 1, "descriptions": {"x y": "step > 3", "x-y": "step > 4"}},
            r"d\.json: the names 'x y' and 'x-y' differ in signs alone",
        ),
    ],
)  # fmt: skip
def test_files_that_describe_nothing(tmp_path: Path, data: Any, said: str) -> None:
    write_json(tmp_path / "d.json", data)
    with pytest.raises(UserError, match=said):
        read_descriptions(tmp_path / "d.json")


def test_the_eight_descriptions_are_read() -> None:
    found = read_descriptions(Path(__file__).parents[2] / "docs/ninja.json")
    assert found.game == "ninja" and len(found.words) == 8 and found.steps == 25_000_000
    for text in found.words.values():
        assert parse_event("x", text, ACTION_NAMES, 0, (), columns_of("ninja", "all")).reads == {"truth"}
