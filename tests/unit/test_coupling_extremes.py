"""Coupling at the same step, given extremes, and behaviours by Jacobian: what is planted is found, chance is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.coupling import correlation, estimates, extremes, figures, kinds, tables
from analysis.coupling.__main__ import main
from analysis.coupling.config import CouplingConfig
from analysis.coupling.correlation import Labelled
from analysis.coupling.edges import page
from core.contracts import UserError
from envs.planted import PlantedOptions, matrices, planted_simulator
from envs.planted_truth import truth

CAUSE, NUISANCE, CONTROLLED, MEMORY = range(4)  # directions of the planted world
NAMES = [f"planted:{i}" for i in range(8)]


def steps_of(c: np.ndarray, lengths: np.ndarray) -> Labelled:
    index = np.concatenate([np.stack([np.full(n, e), np.arange(n)], 1) for e, n in enumerate(lengths)])
    return Labelled(index, index[:, 0], np.zeros(len(index), np.int64), c)


def slow(rng: np.random.Generator, lengths: np.ndarray, k: int) -> np.ndarray:
    """Independent slow series: neighbours are nearly the same."""
    out = []
    for n in lengths:
        x = rng.normal(size=(int(n), k))
        for t in range(1, int(n)):
            x[t] = 0.9 * x[t - 1] + np.sqrt(1 - 0.9**2) * x[t]
        out.append(x)
    return np.concatenate(out)


# Lag 0


def test_what_goes_together_at_the_same_step_is_found_both_ways_and_a_direction_with_itself_is_no_test() -> None:
    rng, lengths = np.random.default_rng(0), np.full(20, 20)
    c = slow(rng, lengths, 3)
    c[:, 1] = 0.6 * c[:, 0] + 0.8 * c[:, 1]
    found = correlation.correlate(steps_of(c, lengths), [0], [0], 999, 200, rng)
    r, p = found["correlation"][0, 0], found["p"][0, 0]
    assert r[0, 1] == pytest.approx(r[1, 0]) and p[0, 1] <= 0.005 and p[1, 0] <= 0.005
    assert np.isnan(np.diagonal(r)).all() and np.isnan(np.diagonal(p)).all()
    assert np.isnan(np.diagonal(found["ends"][0, 0, 0])).all()
    low, high = found["ends"][:, 0, 0, 0, 1]
    assert low < 0.6 < high


# Extremes


def test_an_end_is_strictly_beyond_its_quantile() -> None:
    c = np.stack([np.arange(100.0), np.maximum(np.arange(100) - 50.0, 0)], 1)
    there = np.arange(100) >= 50
    high, low = extremes.tails_of(c, there, 0.1)
    assert np.flatnonzero(high[:, 0]).tolist() == list(range(95, 100))
    assert np.flatnonzero(low[:, 0]).tolist() == list(range(50, 55))
    rest = np.maximum(np.arange(100) - 90.0, 0)[:, None]  # at rest nine tenths of the time
    assert not extremes.tails_of(rest, np.ones(100, bool), 0.1)[1].any()


@pytest.mark.parametrize(("equal", "runs"), [(True, 30), (False, 30), pytest.param(False, 300, marks=pytest.mark.slow)])
def test_unrelated_directions_have_no_means_at_their_extremes(
    equal: bool, runs: int, record_property: Callable[[str, object], None]
) -> None:
    rng, hits, naive, tests, covered = np.random.default_rng(1), 0, 0, 0, 0
    for _ in range(runs):
        lengths = np.full(24, 30) if equal else rng.integers(8, 60, size=24)
        steps = steps_of(slow(rng, lengths, 5), lengths)
        found = extremes.means_given(steps, [0, 2], 0.05, 199, 199, rng, 0.05)
        off = ~np.eye(5, dtype=bool)
        p, mean = found["p"][..., off], found["mean"][..., off]
        steps_of_entry = np.repeat(found["steps"], 4, -1).reshape(p.shape)
        hits, tests = hits + int((p <= 0.05).sum()), tests + p.size
        naive += int((np.abs(mean) * np.sqrt(steps_of_entry) > 1.96).sum())
        low, high = found["ends"][..., off]
        covered += int(((low <= 0) & (high >= 0)).sum())
    record_property("false_alarms", float(hits / tests))
    record_property("coverage", float(covered / tests))
    assert 0.02 < hits / tests < (0.075 if runs < 100 else 0.06)  # 80 dependent tests a run
    assert naive / tests > 0.2  # steps taken as independent would have found something
    assert covered / tests > 0.9


def test_what_happens_only_at_extremes_is_found_where_the_correlation_is_none() -> None:
    """Both ends of direction 0 raise direction 1 two steps later; direction 2 is on its own."""
    rng, lengths = np.random.default_rng(2), np.full(60, 40)
    c = rng.normal(size=(2400, 3))
    far = np.abs(c[:, 0]) > np.quantile(np.abs(c[:, 0]), 0.96)
    for e in range(60):
        rows = slice(40 * e, 40 * (e + 1))
        c[rows][2:, 1] += 2.0 * far[rows][:-2]
    steps = steps_of(c, lengths)
    found = extremes.means_given(steps, [1, 2], 0.02, 999, 499, rng, 0.05)
    assert (found["mean"][:, 1, 0, 1] > 1).all() and (found["p"][:, 1, 0, 1] <= 0.002).all()
    assert (found["ends"][0, :, 1, 0, 1] > 0).all()
    assert found["steps"][:, 1, 0].tolist() == pytest.approx([46, 46], abs=6)
    others = found["p"].copy()
    others[:, 1, 0, 1] = np.nan
    assert np.nanmin(others) > 0.002
    r = correlation.correlate(steps, [0], [2], 999, 200, rng)
    assert abs(r["correlation"][0, 0, 0, 1]) < 0.1  # one end adds what the other takes away


def test_the_jacobian_at_extremes_is_planted_and_clears_the_nuisance() -> None:
    """CAUSE moves MEMORY by 0.25 wherever it is; NUISANCE goes with it and moves nothing."""
    simulator, known = planted_simulator(dtype=torch.float64), truth(dtype=torch.float64)
    config = CouplingConfig(
        lags=(0, 1), extremes=0.2, permutations=499, resamples=199, samples_per_behaviour=16, threads=1
    )
    x = np.random.default_rng(1).normal(size=(40, 8)) @ matrices(PlantedOptions()).first_XX.T
    z = torch.from_numpy(np.concatenate([x, np.zeros_like(x)], 1))
    h = simulator.rollout(z, 8).h.flatten(0, 1).numpy()
    steps = steps_of(known.basis.project(torch.from_numpy(h)).numpy(), np.full(40, 9))
    planned = estimates.plan(simulator, z, steps, h, [0], config)
    assert len(planned.ends) == 1 + 1 + 2 * 8
    found = estimates.couple(simulator, planned, steps, known.basis, [0], config)
    assert found.extremes is not None and np.isnan(found.extremes.jacobian[:, 0]).all()
    J, p = found.extremes.jacobian[:, 1], found.extremes.p_jacobian[:, 1]
    assert (p[:, CAUSE, MEMORY] <= 0.01).all() and (J[:, NUISANCE, MEMORY] == 0).all()
    np.testing.assert_allclose(J[:, CAUSE, MEMORY], 0.25, atol=1e-9)
    assert np.isnan(found.jacobian[""][:, 0]).all() and np.isfinite(found.jacobian[""][:, 1]).all()
    assert np.isfinite(found.correlation[0, 0][~np.eye(8, dtype=bool)]).all()
    result = tables.assemble(found, [0], {0: "all"}, NAMES, config)
    rows = {(r["source"], r["end"], r["target"]): r for r in result.tables["extremes"] if r["lag"] == 1}
    assert rows[NAMES[CAUSE], "high", NAMES[MEMORY]]["J"] == pytest.approx(0.25)
    assert (NAMES[NUISANCE], "high", NAMES[MEMORY]) not in rows or (
        rows[NAMES[NUISANCE], "high", NAMES[MEMORY]]["J"] == 0
    )
    assert "its upper and lower 20 %" in page(result)
    assert all(row["lag"] == 1 for row in result.tables["edges"])
    figure = figures.draw_extremes(result)
    assert [axis.get_ylabel() for axis in figure.axes[::4][:2]] == ["source at the same step", "source 1 step before"]
    figures.draw_graph(result, 0)  # of the later lag alone


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lags": (0,)}, "one at least above 0"), ({"lags": (1, -1)}, "whole numbers"), ({"lags": ()}, "whole numbers"),
        ({"extremes": 0.5}, "--extremes 0.5 is not a share"), ({"extremes": -0.1}, "is not a share"),
    ],
)  # fmt: skip
def test_lags_and_shares_that_mean_nothing_are_refused(options: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        main(CouplingConfig(out=tmp_path / "out", **options))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


# Behaviours by Jacobian


def of_behaviours(
    rng: np.random.Generator, means: np.ndarray, episodes: int, shared: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Effects of every behaviour's episodes about its mean, scattered unequally; an episode's own part is in all of the
    behaviours that share it."""
    own = rng.normal(size=(episodes * len(means), means.shape[1]))
    effects, units = [], []
    for b, mean in enumerate(means):
        unit = np.arange(episodes) + (0 if shared else b * episodes)
        scatter = rng.standard_t(5, size=(episodes, means.shape[1])) * (0.5 + b)
        effects.append(mean + own[unit] + scatter)
        units.append(unit)
    return effects, units


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("runs", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_behaviours_that_work_alike_are_one_kind(
    shared: bool, runs: int, record_property: Callable[[str, object], None]
) -> None:
    rng, several = np.random.default_rng(3), 0
    for _ in range(runs):
        found = kinds.kinds(*of_behaviours(rng, np.full((4, 12), 0.5), 12, shared), 0.05, 199, rng)
        several += found.kind_B.max() > 0
    record_property("false_alarms", float(several / runs))
    assert several / runs < (0.13 if runs < 100 else 0.08)  # standard error of 60: 0.03, of 400: 0.011


@pytest.mark.parametrize(("episodes", "spread"), [((8, 60), (3, 1)), ((12, 24), (2, 1)), ((24, 24), (2, 1))])
def test_another_spread_is_no_other_kind(episodes: tuple[int, int], spread: tuple[int, int]) -> None:
    """Skewed effects of mean 0: where whole episodes are exchanged instead, .51, .37 and .15 of these pairs differ."""
    found = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        effects = [
            s * (rng.lognormal(0, 1, (n, 8)) - np.exp(0.5)) for n, s in zip(episodes, spread, strict=True)
        ]  # fmt: skip
        units = [np.arange(episodes[0]), np.arange(sum(episodes))[episodes[0] :]]
        found.append(kinds.kinds(effects, units, 0.05, 99, rng).p_BB[0, 1] <= 0.05)
    assert np.mean(found) < 0.13


@pytest.mark.parametrize("shared", [0, 6, 12])
def test_other_means_are_another_kind_where_spreads_differ(shared: int) -> None:
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        own = rng.normal(size=(24, 8))
        units = [np.arange(12), np.arange(12, 24) - shared]
        effects = [own[unit] + b * 1.5 + rng.normal(size=(12, 8)) * (1 + b) for b, unit in enumerate(units)]
        found.append(kinds.kinds(effects, units, 0.05, 99, rng).p_BB[0, 1] <= 0.05)
    assert np.mean(found) > 0.8


def test_planted_kinds_are_found() -> None:
    rng = np.random.default_rng(4)
    two = rng.normal(size=(2, 12)) * 3
    means = two[[0, 1, 0, 1, 0]]
    effects, units = of_behaviours(rng, means, 24, True)
    found = kinds.kinds([*effects, None], [*units, np.arange(2)], 0.05, 999, rng)
    assert found.kind_B.tolist() == [0, 1, 0, 1, 0, kinds.NOT_TESTED]
    assert np.isnan(found.q_BB[5]).all() and found.q_BB[0, 1] == found.q_BB[1, 0] <= 0.05
    true = np.sqrt(((two[0] - two[1]) ** 2).sum() / ((two**2).sum() / 2))
    assert found.distance_BB[0, 1] == pytest.approx(true, abs=0.2) and found.distance_BB[0, 2] < 0.3


def test_jacobians_without_scatter_are_told_apart_too() -> None:
    """Of a linear world every episode has the same Jacobian."""
    rng = np.random.default_rng(5)
    effects = [np.full((8, 3), v) for v in (0.2, 0.2, 0.9)]
    found = kinds.kinds(effects, [np.arange(8)] * 3, 0.05, 499, rng)
    assert found.kind_B.tolist() == [0, 0, 1] and found.distance_BB[0, 1] == 0


def test_groups_hold_nobody_that_is_told_apart() -> None:
    distance = np.array([[0, 1, 2], [1, 0, 1.5], [2, 1.5, 0]])
    apart = np.zeros((3, 3), bool)
    assert kinds.merged(distance, apart, [0, 1, 2]).tolist() == [0, 0, 0]
    apart[0, 2] = apart[2, 0] = True
    assert kinds.merged(distance, apart, [0, 1, 2]).tolist() == [0, 0, 1]  # 1 is nearest to 0, and then 2 stays out
    assert kinds.merged(distance, apart, []).tolist() == [-1, -1, -1]


def test_kinds_of_the_switched_world_are_its_behaviours() -> None:
    """Two behaviours whose memory works by opposite signs, each under two labels: two kinds."""
    options = PlantedOptions(kind="gated")
    simulator, known = planted_simulator(options, dtype=torch.float64), truth(options, dtype=torch.float64)
    config = CouplingConfig(lags=(1,), permutations=499, resamples=99, samples_per_behaviour=16, threads=1)
    x = np.random.default_rng(6).normal(size=(64, 8)) @ matrices(options).first_XX.T
    switch = matrices(options).behaviour_switches[0]
    x[:, switch] = np.where(np.arange(64) % 2, 1.0, -1.0)
    z = torch.from_numpy(np.concatenate([x, np.zeros_like(x)], 1))
    h = simulator.rollout(z, 8).h.flatten(0, 1).numpy()
    steps = steps_of(known.basis.project(torch.from_numpy(h)).numpy(), np.full(64, 9))
    steps = steps._replace(label_N=steps.unit_N % 4)  # labels 0, 2 and 1, 3 are the same
    planned = estimates.plan(simulator, z, steps, h, [0, 1, 2, 3], config)
    found = estimates.couple(simulator, planned, steps, known.basis, [0, 1, 2, 3], config)
    assert found.kinds is not None and found.kinds.kind_B.tolist() == [0, 1, 0, 1]
    result = tables.assemble(found, [0, 1, 2, 3], {1: "behaviour 1: left"}, NAMES, config)
    assert result.scalars["kinds"]["value"] == 2 and len(result.tables["behaviour_pairs"]) == 6
    assert "- kind 1: behaviour 1 (left); behaviour 3" in page(result)
    axis = figures.draw_kinds(result).axes[0]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0", "2", "1", "3"]
