"""Subspaces that carry a difference: on an agent whose causes are planted, the fit, its rivals and its guard."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis.causal_directions import figures, subspaces
from analysis.causal_directions.study import (
    ACCURACY,
    CAUSAL,
    KL,
    LONG,
    NOTHING,
    RANDOM,
    VALUE,
    VARYING,
    WHOLE,
    at_once,
    compared,
    estimate_of,
    estimated,
    halves,
    measure,
    seek,
    sentences,
    smallest,
    text_of_transfer,
    told_of,
    with_q,
)
from analysis.causal_directions.subspaces import Exchange, FitOptions, Readout, along
from core import artefacts
from core.artefacts import Result
from core.contracts import UserError
from core.directions import load_basis
from core.figures import figure_of
from envs.planted import PlantedAgent, PlantedOptions, matrices

CAUSE, NUISANCE = 0, 1
OPTIONS = FitOptions(steps=200)


def planted(n: int = 96, seed: int = 0, other: float = 0.0, acts: bool = True) -> tuple[Exchange, np.ndarray, Tensor]:
    """Pairs of the planted confounded agent whose edit lowers the cause by a varying amount and the nuisance by a large
    and steady one, so that the nuisance tells base from source best; and the directions' true places in h [H, K].

    other: deviation of what else differs, in directions that nothing reads.  acts: whether the cause is lowered at all.
    """
    agent = PlantedAgent(PlantedOptions(kind="confounded"))
    rng = np.random.default_rng(seed)
    c = rng.standard_normal((n, 8))
    edited = c.copy()
    edited[:, CAUSE] -= acts * (1 + 0.8 * rng.standard_normal(n))
    edited[:, NUISANCE] -= 6 + 0.3 * rng.standard_normal(n)
    edited[:, 5:] += other * rng.standard_normal((n, 3))
    r_HK = torch.tensor(matrices(agent.options).R_HK, dtype=torch.float32)
    base, source = (torch.from_numpy(x).float() @ r_HK.T for x in (c, edited))
    at = Readout(agent, torch.zeros(n, 8), torch.zeros(n, 8), ((0,), (1,), (2,)))
    return Exchange(base, source, at, at), np.arange(n), r_HK


def cosine(w_HR: Tensor, direction_H: Tensor) -> float:
    return float((w_HR.T @ direction_H / direction_H.norm()).norm())


@pytest.mark.parametrize("other", [0.0, 0.5])
def test_the_direction_that_acts_is_found_and_the_one_that_only_tells_is_not(other: float) -> None:
    pairs, levels, r_HK = planted(other=other)
    w = subspaces.fit(pairs, levels, 1, OPTIONS)
    assert torch.allclose(w.T @ w, torch.eye(1), atol=1e-5)
    assert cosine(w, r_HK[:, CAUSE]) >= 0.98 and cosine(w, r_HK[:, NUISANCE]) < 0.1
    probe = subspaces.probe(pairs, 1)
    assert cosine(probe, r_HK[:, NUISANCE]) >= 0.95  # the probe finds what tells
    done = at_once(pairs, along(w)), at_once(pairs, along(probe))
    plain = at_once(pairs, subspaces.zero)[KL].mean()
    assert np.nanmean(done[0][ACCURACY]) == 1 and done[0][KL].mean() < 1e-3 * plain
    assert np.nanmean(done[1][ACCURACY]) < 0.9 and done[1][KL].mean() > 0.25 * plain  # it moves the cause by its mean


def test_rounding_errors_are_no_effect() -> None:
    """States that differ in what nothing reads: the heads' numbers differ in their last digits."""
    pairs, levels, _ = planted(acts=False)
    plain = at_once(pairs, subspaces.zero)
    assert 0 < np.abs(pairs.at_base(pairs.base_NH)[0] - pairs.at_source(pairs.source_NH)[0]).max() < 1e-5
    assert plain[KL].max() < subspaces.LEAST_KL
    with pytest.raises(UserError, match="changes neither the agent's actions nor its value"):
        subspaces.fit(pairs, levels, 1, OPTIONS)


class ValueAlone(PlantedAgent):
    """Its policy does not read the cause."""

    def heads(self, seen: Any, state: Any) -> tuple[Tensor, Tensor]:
        cause_H = torch.tensor(matrices(self.options).R_HK, dtype=torch.float32)[:, CAUSE]
        cause_H = cause_H / cause_H.norm()
        logits, _ = super().heads(seen, state - (state @ cause_H)[:, None] * cause_H)
        return logits, super().heads(seen, state)[1]


@pytest.mark.parametrize("seed", range(4))
def test_what_only_the_value_reads_is_found_and_nothing_is_said_of_actions(seed: int) -> None:
    pairs, levels, r_HK = planted(seed=seed)
    at = dataclasses.replace(pairs.at_base, agent=ValueAlone(PlantedOptions(kind="confounded")))
    pairs = Exchange(pairs.base_NH, pairs.source_NH, at, at)
    assert subspaces.Loss(pairs).asks == [False, True]
    w = subspaces.fit(pairs, levels, 1, OPTIONS)
    assert cosine(w, r_HK[:, CAUSE]) >= 0.99

    class Held:
        exchange = pairs

    found = seek(pairs, levels, pairs.base_NH, (1,), FitOptions(steps=20), bases={}, draws=2)
    got = measure(Held, found.methods, lambda change: {})  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    assert np.isnan(
        estimate_of(estimated(got, told_of(got, levels), levels, "e", rng), "e", CAUSAL, 1, f"recovered {KL}").value
    )
    assert {row["measure"] for row in compared(got, told_of(got, levels), levels, "e", rng)} == {VALUE}
    said = sentences(estimated(got, told_of(got, levels), levels, "e", rng), "e", (1,), None, 4, found.guards)
    assert "there is nothing to take away at once (the divergence from the edited world's policy is " in said[1]
    assert "nan" not in " ".join(said)


@pytest.mark.parametrize("scale, there", [(1e-3, False), (1.0, True)])
def test_of_less_than_is_of_interest_no_share_is_said_to_be_taken_away(scale: float, there: bool) -> None:
    """An agent that hardly acts on it (an untrained one): all of next to nothing is nothing."""
    rng = np.random.default_rng(0)
    plain = scale * rng.uniform(0.02, 0.06, 24)
    found = {(NOTHING, 0): {KL: plain, f"{KL}@1..4": plain}}
    found |= {(name, rank): {q: 0.001 * x for q, x in found[NOTHING, 0].items()}
              for name, rank in ((WHOLE, 8), (CAUSAL, 1), (RANDOM, 1))}  # fmt: skip
    rows = estimated(found, told_of(found, np.arange(24)), np.arange(24), "e", rng)
    said = sentences(rows, "e", (1,), None, 4, {1: subspaces.Guard(1, 1, None, None)})[1]
    nothing = "nothing to take away"
    assert said.count(nothing) == 2 * (not there) and ("takes away 0.999" in said) == there
    assert (
        (nothing in text_of_transfer(rows, "e", 1))
        == (not there)
        == (not compared(found, told_of(found, np.arange(24)), np.arange(24), "e", rng))
    )


def test_what_is_patched_back_undoes_it() -> None:
    pairs, levels, r_HK = planted()
    back = at_once(pairs, along(subspaces.fit(pairs, levels, 1, OPTIONS)))
    assert np.nanmean(back["interchange accuracy back"]) == 1 and back["kl back"].mean() < 1e-3
    assert np.array_equal(np.isnan(back[ACCURACY]), np.isnan(back["interchange accuracy back"]))


def test_a_dormant_direction_is_not_part_of_it() -> None:
    """A direction that acts but that no pair differs in can stand in for the one that does (the illusion): the loss
    alone does not refuse it, and the fit must."""
    pairs, levels, r_HK = planted()
    memory = 3  # read with a quarter of the cause's weight, by both heads
    illusion = r_HK[:, [CAUSE]] + 0.25 * r_HK[:, [memory]]
    illusion = illusion / illusion.norm()
    loss = subspaces.Loss(pairs)
    assert float(loss(along(illusion))) < 1e-5
    assert abs(float(r_HK[:, memory] @ subspaces.fit(pairs, levels, 1, OPTIONS)[:, 0])) < 1e-3


def test_the_guard_sees_what_lies_where_states_never_vary_and_what_the_heads_do_not_read() -> None:
    pairs, _, r_HK = planted()
    cause, nuisance, bystander = (r_HK[:, [i]] for i in (CAUSE, NUISANCE, 7))
    states = pairs.base_NH - (pairs.base_NH @ bystander) @ bystander.T  # one direction never varies
    read = subspaces.read_by(pairs.at_base, pairs.base_NH)
    held = subspaces.guard((cause + bystander) / 2**0.5, states, read)
    assert held.varying == pytest.approx(0.5, abs=1e-3)
    assert held.read == pytest.approx(0.5 * 16 / 17, abs=1e-3)  # both heads read it together with a quarter of memory
    assert held.varying_HR is not None and cosine(held.varying_HR, cause[:, 0]) == pytest.approx(1, abs=1e-3)
    nothing = subspaces.guard(nuisance, states, read)
    assert nothing.varying == pytest.approx(1, abs=1e-3) and nothing.read < 1e-6 and nothing.read_HR is None


def test_the_whole_study_of_planted_pairs() -> None:
    pairs, levels, r_HK = planted(n=160, other=0.5)
    learn, judge = halves(levels, 0)
    basis = subspaces.as_basis(r_HK[:, [CAUSE, NUISANCE]].flip(1), pairs.base_NH, "", {})
    fitting = pairs.rows(torch.from_numpy(learn))
    found = seek(fitting, levels[learn], pairs.base_NH, (1, 2), OPTIONS, bases={"pca": basis}, draws=3)
    names = {(m.name, m.rank) for m in found.methods}
    assert {(NOTHING, 0), (WHOLE, 8), (CAUSAL, 1), (CAUSAL, 2), (RANDOM, 2), (LONG, 1), (VARYING, 1)} < names

    class Held:  # what ``measure`` asks of pairs of a world that does not go on
        exchange = pairs.rows(torch.from_numpy(judge))

    got = measure(Held, found.methods, lambda change: {})  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    rows = estimated(got, told_of(got, levels[judge]), levels[judge], "edit", rng)
    assert estimate_of(rows, "edit", WHOLE, None, ACCURACY).value == 1
    assert estimate_of(rows, "edit", NOTHING, 0, ACCURACY).value == 0
    assert estimate_of(rows, "edit", NOTHING, 0, "recovered kl").value == 0
    assert estimate_of(rows, "edit", CAUSAL, 1, "recovered kl").value > 0.99
    assert estimate_of(rows, "edit", "pca", 1, "recovered kl").value > 0.99  # chosen for what it does, not by order
    assert estimate_of(rows, "edit", RANDOM, 1, "recovered kl").value < 0.6
    tests = with_q(compared(got, told_of(got, levels[judge]), levels[judge], "edit", rng))
    assert smallest(rows, tests, "edit", (1, 2)) == 1
    (against,) = [t for t in tests if (t["rank"], t["against"], t["measure"]) == (1, "probe", KL)]
    assert against["high"] < 0 and against["q"] < 0.01 and against["q"] >= against["p"]


def test_no_rank_carries_where_the_largest_does_not() -> None:
    def row(method: str, rank: int, low: float) -> dict[str, object]:
        return {"edit": "e", "method": method, "rank": rank, "measure": ACCURACY, "value": 1.0, "low": low, "high": 1,
                "n": 9}  # fmt: skip

    def ahead(rank: int, low: float = 0.1, q: float = 0.01) -> dict[str, object]:
        return {"edit": "e", "rank": rank, "against": RANDOM, "measure": ACCURACY, "low": low, "q": q}

    rows = [row(WHOLE, 8, 1), row(CAUSAL, 1, 0.9), row(CAUSAL, 2, 0.7), row(CAUSAL, 4, 0.85)]
    tests = [ahead(1), ahead(2), ahead(4)]
    assert smallest(rows, tests, "e", (1, 2, 4)) == 4 and smallest(rows, tests, "e", (1, 2)) is None
    assert smallest([row(WHOLE, 8, 1), row(CAUSAL, 1, float("nan"))], tests, "e", (1,)) is None
    for short in (ahead(4, low=-0.1), ahead(4, q=0.2), ahead(1)):  # where random ones do as well nothing is said
        assert smallest(rows, [short], "e", (1, 2, 4)) is None


@pytest.mark.parametrize("steady", [30.0, 100.0])
def test_a_steady_difference_hides_no_cause(steady: float) -> None:
    """It took all but a thousandth of the squared length, in which the cause was left out of what is searched."""
    pairs, levels, r_HK = planted()
    nuisance_H = r_HK[:, NUISANCE] / r_HK[:, NUISANCE].norm()
    source = pairs.source_NH - steady * nuisance_H
    w = subspaces.fit(Exchange(pairs.base_NH, source, pairs.at_base, pairs.at_source), levels, 1, OPTIONS)
    assert cosine(w, r_HK[:, CAUSE]) >= 0.98 and cosine(w, nuisance_H) < 0.05


def test_a_random_patch_as_long_as_another_one() -> None:
    pairs, _, r_HK = planted()
    like = along(r_HK[:, :2])
    w = subspaces.random_subspace(8, 2, torch.Generator().manual_seed(0), pairs.base_NH)
    change = subspaces.as_long_as(along(w), like)(pairs.difference_NH)
    assert torch.allclose(change.norm(dim=1), like(pairs.difference_NH).norm(dim=1), rtol=1e-4)
    assert torch.allclose(change, along(w)(change), atol=1e-4)  # it stays in its subspace


def test_the_basis_patches_as_the_subspace_does(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pairs, levels, _ = planted(other=0.5)
    w = subspaces.fit(pairs, levels, 2, OPTIONS)
    subspaces.as_basis(w, pairs.base_NH, "a" * 16, {"edit": "remove coin"}).save(tmp_path)
    artefacts.Run(path=tmp_path, stage="causal_directions", config={}).finish()
    basis = load_basis(tmp_path, "causal", "a" * 16)
    c = basis.project(pairs.base_NH)
    assert torch.allclose(c.mean(0), torch.zeros(2), atol=1e-4) and torch.allclose(c.std(0), torch.ones(2), atol=1e-4)
    assert torch.allclose(basis.project(basis.lift(c)), c, atol=1e-4)
    d = pairs.difference_NH
    assert torch.allclose(subspaces.along_basis(basis, (0, 1))(d), along(w)(d), atol=1e-4)
    assert (basis.project(pairs.source_NH) - c).mean(0).min() >= 0  # the edit raises them


def test_mistakes_are_one_line() -> None:
    pairs, levels, _ = planted()
    with pytest.raises(UserError, match="only 2 independent directions; lower --ranks"):
        subspaces.fit(pairs, levels, 3, OPTIONS)
    few, levels_of_few, _ = planted(4, other=1.0)
    with pytest.raises(UserError, match="only 4 independent .* the 4 pairs .* span no more; raise --starts or lower"):
        subspaces.fit(few, levels_of_few, 5, OPTIONS)
    same = Exchange(pairs.base_NH, pairs.base_NH, pairs.at_base, pairs.at_source)
    with pytest.raises(UserError, match="neither the agent's actions nor its value"):
        subspaces.loss_of(same)
    with pytest.raises(UserError, match="pairs of 5 levels, and at least 12"):
        halves(np.arange(5), 0)


def test_the_legend_names_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not PCA and ICA where no basis was given."""
    measures = ("interchange accuracy", "recovered kl", "recovered kl@1..2")
    rows = [
        {"edit": "remove coin", "method": method, "rank": 1, "measure": name, "value": 0.5, "low": 0.4, "high": 0.6}
        for method in ("causal", "probe") for name in measures
    ]  # fmt: skip
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "figure_of", lambda *size: drawn.append(figure_of(*size)) or drawn[0])
    figures.draw(Result(tables={"subspaces": rows}, notes={"horizon": 2}), tmp_path, "remove coin")
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["causal", "probe"]
