"""Fits of world states and latents, and the overlap of real with simulated states, against planted truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.shared.directions import (
    SPACES,
    fit_ica,
    fit_nmf,
    fit_pca,
    neuron_basis,
    state_rank,
    varying,
)
from analysis.shared.units import Drawn, stretches, units
from analysis.states import fit as states_fit, runs
from analysis.states.figures import colourings, draw, figures_of, label_of, number_of
from analysis.states.fit import check, fit
from analysis.states.overlap import _inside, overlap
from analysis.states.pooled import FitOptions, States, join
from analysis.states.turning import page
from core import artefacts
from core.contracts import UserError

EPISODES, STEPS = 24, 30


class Recording:
    """What ``units`` asks of a store."""

    path = Path("real")

    def __init__(self, source: str, metas: list[dict[str, Any]]) -> None:
        self.manifest = {"facts": {"source": source}, "inputs": {"rollouts": {"manifest_sha256": "of real"}}}
        self.metas, self.meta = metas, metas.__getitem__

    def __len__(self) -> int:
        return len(self.metas)


def test_a_sample_that_started_in_a_life_is_of_the_unit_of_its_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was of the world whose number is the life's."""
    monkeypatch.setattr(artefacts, "manifest_sha256", lambda path: "of real")
    real: Any = Recording("real", [{"world": w} for w in (0, 0, 0, 1, 1, 1)])
    samples: Any = Recording("simulated", [{"start": s} for s in ([1, 4], [2, 9], [5, 0], None)])
    assert units(real, real).tolist() == [0, 0, 0, 3, 3, 3]
    assert units(samples, real).tolist() == [0, 0, 3, 11]
    assert units(samples, None).tolist() == [4, 7, 16, 11]  # together by life, but not with real ones


def walk(rng: np.random.Generator, episodes: int, size: int) -> np.ndarray:
    """Autocorrelated states [episodes * STEPS, size], a stationary AR(1) with coefficient 0.9."""
    x = np.zeros((episodes, STEPS, size))
    x[:, 0] = rng.standard_normal((episodes, size))
    for t in range(1, STEPS):
        x[:, t] = 0.9 * x[:, t - 1] + np.sqrt(1 - 0.81) * rng.standard_normal((episodes, size))
    return x.reshape(-1, size)


def pooled(x_NF: np.ndarray, source_N: np.ndarray, unit_N: np.ndarray) -> States:
    n, zero = len(x_NF), np.zeros(len(x_NF))
    index_N2 = np.stack([np.arange(n) // STEPS, np.arange(n) % STEPS], 1)
    return States(x_NF, zero, zero.astype(int), zero, zero.astype(int), index_N2, source_N, unit_N)


def compared(shift: float, scale: float, seed: int) -> dict[str, dict]:
    """Rows of ``overlap`` by measure, where simulated states are real ones moved and spread by so much."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([walk(rng, EPISODES, 3), shift + scale * walk(rng, EPISODES, 3)])
    real = np.arange(len(x)) < len(x) // 2
    return {r["measure"]: r for r in overlap(x, x, real, np.arange(len(x)) // STEPS, seed)}


def test_overlap_of_equal_sources_is_that_of_real_with_real() -> None:
    found = [compared(0, 1, seed) for seed in range(3)]
    for name in ("inside", "covered", "told_apart"):
        gap = np.mean([row[name]["simulated"] - row[name]["floor"] for row in found])
        assert abs(gap) < 0.1, name
    inside = np.mean([row["told_apart"]["low"] < 0.5 < row["told_apart"]["high"] for row in found])
    assert inside > 0.5
    assert all(row["inside"]["low"] < row["inside"]["simulated"] < row["inside"]["high"] for row in found)
    assert all(row["inside"]["n"] == 2 * EPISODES for row in found)


def test_overlap_of_far_sources_is_none() -> None:
    found = compared(30, 1, 0)
    for name in ("inside", "covered"):  # 0 in all halves, which 0 to 0 would be sure of
        assert found[name]["simulated"] == found[name]["low"] == 0 < 1 / EPISODES < found[name]["high"] < 0.3
    assert found["inside"]["floor"] > 0.5 and found["told_apart"]["floor"] < 0.7
    assert found["told_apart"]["simulated"] == 1
    assert found["frechet"]["simulated"] > 100 > 1 > found["frechet"]["floor"]


@pytest.mark.parametrize(("episodes", "known"), [(6, False), (8, True)])
def test_a_floor_of_few_episodes_has_no_interval_and_says_so(episodes: int, known: bool) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([walk(rng, episodes, 3), walk(rng, EPISODES, 3)])
    real = np.arange(len(x)) < episodes * STEPS
    found = {r["measure"]: r for r in overlap(x, x, real, np.arange(len(x)) // STEPS, 0)}
    row = found["told_apart"]
    assert row["low"] is not None and row["floor"] is not None and row["reason"] == ""
    assert (row["floor_low"] is not None) == known == (row["floor_high"] is not None)
    assert row["floor_reason"] == ("" if known else "no interval of fewer than 4 episodes on a side")
    for r in (found["inside"], found["covered"], found["frechet"]):  # halves, whose own interval is none either
        assert (r["low"] is not None) == (known and r["simulated"] is not None)
        assert (r["floor_high"] is not None) == (known and r["floor"] is not None)
        assert r["floor_reason"] == ("" if r["reason"] else row["floor_reason"])
    assert found["frechet"]["reason"] == ""


def test_few_simulated_episodes_take_nothing_from_the_floor() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([walk(rng, EPISODES, 3), walk(rng, 6, 3)])
    found = overlap(x, x, np.arange(len(x)) < EPISODES * STEPS, np.arange(len(x)) // STEPS, 0)
    for row in [r for r in found if r["measure"] in ("covered", "frechet") and not r["reason"]]:
        assert row["low"] is None and row["interval_reason"].startswith("no interval of fewer than 4")
        assert row["floor_low"] < row["floor"] < row["floor_high"] and row["floor_reason"] == ""


def test_overlap_says_which_of_two_sources_is_the_narrower() -> None:
    """A simulator that knows only the middle of the world: all that it shows is real, but much is missing."""
    found = compared(0, 0.2, 1)
    assert found["inside"]["simulated"] > 0.95
    assert found["covered"]["simulated"] < 0.6 * found["covered"]["floor"]


def test_neighbours_of_the_same_episode_do_not_count() -> None:
    """Two far clumps, each an episode: with its own episode as neighbours a state would reach nowhere."""
    x = np.concatenate([np.random.default_rng(0).normal(c, 0.01, (20, 1)) for c in (0, 10)])
    unit = np.repeat([0, 1], 20)
    assert _inside(x, unit, np.arange(40), np.arange(40)) == 1
    assert np.isnan(_inside(x, np.zeros(40), np.arange(40), np.arange(40)))  # nobody else to be near to


# Spaces


@pytest.mark.parametrize("space", ["d", "h"])
def test_units_that_never_change_are_left_out_by_name(space: str, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x = walk(rng, EPISODES, 8).astype(np.float32)
    x[:, [2, 5]] = 0.25
    unit_name = SPACES[space].unit
    names = [f"{unit_name} 2", f"{unit_name} 5"]
    assert varying(x, space).tolist() == [0, 1, 3, 4, 6, 7]
    for basis in (
        fit_pca(x, 4, "sim", space=space), fit_ica(x, 4, "sim", 2, space=space), fit_nmf(x, 4, "sim", space=space),
    ):  # fmt: skip
        assert (basis.space, basis.agent, basis.facts["left_out"]) == (space, "sim", names)
        assert (basis.lift_KH[:, [2, 5]] == 0).all() and (basis.project_HK[[2, 5]] == 0).all()
        c = torch.randn(3, 4)
        torch.testing.assert_close(basis.project(basis.lift(c)), c, atol=1e-4, rtol=1e-4)
        assert basis.lift(c)[:, 2].tolist() == [0.25] * 3  # never moved
    unit = np.arange(len(x)) // STEPS
    options = FitOptions(pca_size=4, ica_size=0, nmf_size=0, clusters=3, surrogates=0, embedding=("pca",))
    result, _ = fit(pooled(x, np.zeros(len(x)), unit), space, "sim", options, 0)
    assert result.notes["left_out"] == names
    said = capsys.readouterr().err
    assert said == f"warning: left out, since they never change: {names[0]}, {names[1]}\n"
    # Shares are of the variance there is: of 6 units, not of 8.
    assert fit_pca(x, 6, space=space).facts["explained"] == pytest.approx(
        fit_pca(np.delete(x, [2, 5], 1), 6, space=space).facts["explained"]
    )
    assert sum(fit_pca(x, 6, space=space).facts["explained"]) == pytest.approx(1)
    with pytest.raises(UserError, match="only 6 of the .* state's 8 dimensions ever change"):
        fit_pca(x, 7, space=space)
    with pytest.raises(UserError, match=f"none of the .* state's 8 {unit_name}s ever changes"):
        fit_pca(np.ones((50, 8)), 2, space=space)
    # A number that is left out has a neighbour far away only by rounding errors of its mean.
    outliers_of = replace(options, drop_outliers=True)
    kept = fit(pooled(x, np.zeros(len(x)), unit), space, "sim", outliers_of, 0)[0].arrays["kept"]
    less = np.delete(x, [2, 5], 1)
    assert np.array_equal(kept, fit(pooled(less, np.zeros(len(x)), unit), space, "", outliers_of, 0)[0].arrays["kept"])
    x[3, 4] = np.inf
    with pytest.raises(UserError, match=rf"NaN or infinite values \({unit_name} 4\)"):
        fit_pca(x, 2, space=space)


def test_a_neuron_that_never_changes_keeps_its_number_and_is_no_direction() -> None:
    x = walk(np.random.default_rng(0), EPISODES, 6)
    x[:, 3] = 0
    basis = neuron_basis(x)
    assert basis.size == 6 and basis.facts["left_out"] == ["neuron 3"]
    h = torch.from_numpy(x[:50]).float()
    c = basis.project(h)
    assert (c[:, 3] == 0).all() and c[:, 4].std() > 0.5
    torch.testing.assert_close(basis.lift(c), h, atol=1e-5, rtol=1e-5)
    assert (basis.lift_change(torch.eye(6)[3]) == 0).all()
    basis.check([2, 4])
    with pytest.raises(UserError, match="direction neurons:3 never changed"):
        basis.check([4, 3])


def few(rng: np.random.Generator, episodes: int, steps: int) -> States:
    """Real states, and simulated ones of few and short episodes that started in the real ones."""
    real = pooled(walk(rng, 8, 5), np.zeros(8 * STEPS), np.arange(8 * STEPS) // STEPS)
    x = rng.standard_normal((episodes * steps, 5))
    index_N2 = np.stack([np.repeat(np.arange(episodes), steps), np.tile(np.arange(steps), episodes)], 1)
    zero = np.zeros(len(x))
    simulated = States(x, zero, zero.astype(int), zero, zero.astype(int), index_N2, zero + 1, index_N2[:, 0])
    return join([real, simulated])


@pytest.mark.parametrize(("episodes", "steps"), [(1, 1), (4, 5), (5, 6), (8, 3), (24, 1)])
def test_few_simulated_states_leave_empty_rows_with_their_reason(tmp_path: Path, episodes: int, steps: int) -> None:
    """A simulator whose samples end soon: what a half of them cannot tell has no number, and the run is whole."""
    options = FitOptions(pca_size=4, ica_size=0, nmf_size=0, clusters=3, surrogates=0, embedding=("pca",))
    result, bases = fit(few(np.random.default_rng(0), episodes, steps), "d", "sim", options, 0)
    words = runs.summary(result, bases, tmp_path)
    if "overlap" not in result.tables:
        assert "are too few" in result.notes["overlap"] and result.notes["overlap"] in words
        return
    for row in result.tables["overlap"]:
        empty = row["simulated"] is None or row["floor"] is None
        assert empty == bool(row["reason"]) and (result.scalars[f"overlap_{row['measure']}"]["value"] is None) == (
            row["simulated"] is None
        )
    unknown = [row["measure"] for row in result.tables["overlap"] if row["reason"]]
    assert unknown or episodes * steps > 23
    assert ("not known: a random half" in words) == bool(unknown)
    if (episodes, steps) == (4, 5):
        draw(result, tmp_path)
    else:  # the others have these figures, too; this one says what is not known
        figures_of(result)["overlap.png"](result).savefig(tmp_path / "overlap.png")


def test_states_of_one_direction_are_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = walk(rng, EPISODES, 1) @ np.ones((1, 3)) + 0.0
    options = FitOptions(
        ica_size=0, nmf_size=0, clusters=3, surrogates=0, embedding=("pca", "tsne"), embedding_states=120
    )
    result, bases = fit(pooled(x, np.zeros(len(x)), np.arange(len(x)) // STEPS), "d", "sim", options, 0)
    assert bases["pca"].size == 1 and result.arrays["map"].shape == (120, 2)
    draw(result, tmp_path)
    assert "fitted pca (1)" in runs.summary(result, bases, tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ica_size": 9}, "choose 1 to 8"),
        ({"ica_size": 7}, "only 6 of"),
        ({"ica_size": 16, "nmf_size": 16}, "^--ica_size 16 and --nmf_size 16 directions: the .* choose 1 to 8"),
        ({"ica_size": 7, "nmf_size": 8}, "^--ica_size 7 and --nmf_size 8 directions: only 6 of"),
        ({"nmf_size": 9}, "choose 1 to 8"),
        ({"pca_size": 7}, "only 6 of"),
        ({"clusters": 200}, "are too few for 200 clusters"),
        ({"clusters": 1}, "at least 2"),
        ({"ica_restarts": 1}, "--ica_restarts 1: at least 2"),
        ({"embedding": ("umap",), "embedding_states": 60}, "60 points are too few for umap"),
        ({"drop_outliers": True, "outlier_neighbours": 900}, "--outlier_neighbours 900"),
    ],
)
def test_what_the_states_cannot_give_is_refused_before_anything_is_fitted(
    monkeypatch: pytest.MonkeyPatch, changed: dict, said: str
) -> None:
    x = walk(np.random.default_rng(0), EPISODES, 8)
    x[:, [2, 5]] = 1.0
    few_states = pooled(x, np.zeros(len(x)), np.arange(len(x)) // STEPS)
    for name in ("fit_pca", "fit_ica", "fit_nmf", "neuron_basis", "k_means", "state_rank"):
        monkeypatch.setattr(states_fit, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))
    options = FitOptions(ica_size=4, nmf_size=4, clusters=3, embedding=("pca",))
    with pytest.raises(UserError, match=said):
        fit(few_states, "h", "", replace(options, **changed), 0)
    with pytest.raises(UserError, match="are of 1 episode, 2 are needed"):
        fit(replace(few_states, unit_N=np.zeros(len(x))), "h", "", options, 0)


def test_a_fit_of_more_directions_than_states_vary_in_names_its_flag() -> None:
    x = walk(np.random.default_rng(0), EPISODES, 3)
    x = np.concatenate([x, x[:, :2] @ np.ones((2, 3))], 1).astype(np.float32)
    states = pooled(x, np.zeros(len(x)), np.arange(len(x)) // STEPS)
    options = FitOptions(pca_size=0, ica_size=5, nmf_size=0, clusters=3, surrogates=0, embedding=("pca",))
    for changed, said in (
        ({}, "--ica_size 5; ask for 3 at most"),
        ({"pca_size": 4}, "--pca_size 4; ask for 3 at most"),
    ):
        with pytest.raises(UserError, match=f"vary in only 3 independent directions, not in {said}"):
            fit(states, "h", "", replace(options, **changed), 0)


def test_latents_keep_their_scale() -> None:
    """A dimension the encoder hardly uses stays small: it is the last component, not one among equals."""
    x = np.random.default_rng(0).standard_normal((2000, 4)) * [1, 0.8, 0.01, 0.5] + 3
    basis = fit_pca(x, 4, "sim", space="z")
    assert basis.space == "z" and (basis.std_H == 1).all()
    np.testing.assert_allclose(basis.facts["explained"], np.array([1, 0.64, 0.25, 1e-4]) / 1.8901, atol=0.02)
    np.testing.assert_allclose(np.abs(basis.lift_KH[3]), [0, 0, 0.01, 0], atol=1e-3)
    h = torch.from_numpy(x[:20]).float()
    torch.testing.assert_close(basis.lift(basis.project(h)), h, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(basis.project(torch.from_numpy(x).float()).std(0, correction=0), 1, atol=1e-3)


def test_the_randomised_solver_agrees_with_the_exact_one() -> None:
    """1,200 dimensions, of which 40 vary much, by decreasing amounts: every component, not only the first."""
    rng = np.random.default_rng(0)
    low, mixing = rng.standard_normal((900, 40)) * np.geomspace(10, 1, 40), rng.standard_normal((40, 1200))
    x = (low @ mixing + rng.standard_normal((900, 1200))).astype(np.float32)
    z = (x - x.mean(0)) / x.std(0)
    exact = np.linalg.svd(z.astype(np.float64), compute_uv=False)[:30] ** 2 / len(z) / 1200
    basis = fit_pca(x, 30, space="d")
    np.testing.assert_allclose(basis.facts["explained"], exact, rtol=2e-3)
    c = torch.randn(5, 30)
    torch.testing.assert_close(basis.project(basis.lift(c)), c, atol=1e-3, rtol=1e-3)
    assert torch.equal(fit_pca(x, 30, space="d").lift_KH, basis.lift_KH)
    np.testing.assert_allclose(fit_pca(x, 500, space="d").facts["explained"][:30], exact, rtol=1e-4)  # too many for it


def test_the_rank_of_wide_states_is_found_from_few_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 7)) @ rng.standard_normal((7, 1100))
    assert state_rank(x, "d") == 7
    with pytest.raises(UserError, match="only 7 independent directions, not in k = 9"):
        fit_pca(x, 9, space="d")


def test_nmf_on_some_states_is_scaled_on_all() -> None:
    rng = np.random.default_rng(0)
    x = rng.exponential(size=(3000, 3)) @ rng.random((3, 6))
    basis = fit_nmf(x, 3, space="d", most_states=500, max_iterations=2000)
    assert basis.facts["states"] == 500 and basis.facts["n"] == 3000
    c = basis.project(torch.from_numpy(x).float())
    torch.testing.assert_close(c.std(0, correction=0), torch.ones(3), atol=1e-3, rtol=0)


# The fit as a whole


def test_simulated_states_are_projected_not_fitted() -> None:
    rng = np.random.default_rng(0)
    real, simulated = walk(rng, EPISODES, 5), 50 + 3 * walk(rng, EPISODES, 5)
    unit = np.arange(2 * len(real)) // STEPS
    both = pooled(np.concatenate([real, simulated]).astype(np.float32), np.repeat([0, 1], len(real)), unit)
    options = FitOptions(ica_size=0, nmf_size=0, clusters=3, surrogates=0, embedding=("pca",))
    result, bases = fit(both, "h", "agent", options, 0)
    np.testing.assert_allclose(bases["pca"].mean_H, real.mean(0), atol=1e-4)
    assert "c_ica" not in result.arrays and set(bases) == {"pca", "neurons"}
    assert result.arrays["kept"].sum() == len(real)
    assert result.scalars["overlap_inside"]["value"] == 0 < result.scalars["overlap_inside_floor"]["value"]
    alone, _ = fit(
        pooled(simulated.astype(np.float32), np.ones(len(simulated)), unit[: len(real)]), "h", "", options, 0
    )
    assert alone.notes["fitted_on"] == "simulated" and "overlap" not in alone.tables


def test_lives_of_a_unit_are_rotated_each_within_itself() -> None:
    """Two kinds of states, each for life, one of long lives: late steps are of one cluster, and every rotation of a
    life by itself leaves that.  Rotated across lives of a unit the clusters would lose it, and seem to follow time."""
    rng, index_N2 = np.random.default_rng(0), np.stack(np.divmod(np.arange(24 * STEPS), STEPS), 1)
    index_N2 = index_N2[(index_N2[:, 0] % 2 > 0) | (index_N2[:, 1] < STEPS // 3)]
    x = (6.0 * (index_N2[:, :1] % 2) + 0.1 * rng.standard_normal((len(index_N2), 4))).astype(np.float32)
    states = replace(pooled(x, np.zeros(len(x)), index_N2[:, 0] // 4), index_N2=index_N2)
    options = FitOptions(pca_size=2, ica_size=0, nmf_size=0, clusters=2, surrogates=0, embedding=("pca",))
    scalars = fit(states, "h", "", options, 0)[0].scalars
    share, floor = scalars["cluster_share_from_time"], scalars["cluster_share_from_time_floor"]
    assert floor["value"] == pytest.approx(share["value"]) and share["value"] > 0.1 and floor["n"] == 6


def test_how_much_of_a_recording_was_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    real, simulated = (
        pooled(walk(rng, EPISODES, 4), np.full(EPISODES * STEPS, s), np.arange(720) // 30) for s in (0, 1)
    )
    some = replace(real, drawn={"rollouts": Drawn([*range(EPISODES)], 0.25)})
    states = join([some, replace(simulated, drawn={"samples": Drawn([*range(EPISODES)], 1.0)})])
    options = FitOptions(pca_size=3, ica_size=0, nmf_size=0, clusters=3, surrogates=0, embedding=("pca",))
    result, _ = fit(states, "h", "", options, 0)
    assert result.scalars["drawn_rollouts"]["value"] == 0.25 and "drawn_samples" not in result.scalars
    assert capsys.readouterr().err.startswith("note: 25.0% of the steps of rollouts are read, of 24 whole episodes")


def test_episodes_that_explore_are_fitted_but_not_compared() -> None:
    """Exploration leads where the agent by itself never comes; that is no error of the simulator.  Before, a perfect
    simulator was told from a recording half of which explores."""
    rng, options = np.random.default_rng(0), FitOptions(ica_size=0, nmf_size=0, clusters=3, surrogates=0)
    options = replace(options, embedding=("pca",))
    x = np.concatenate([walk(rng, EPISODES, 3), 4 + walk(rng, EPISODES, 3), walk(rng, EPISODES, 3)]).astype(np.float32)
    size = EPISODES * STEPS
    states = pooled(x, np.repeat([0, 0, 1], size), np.arange(3 * size) // STEPS)
    result, _ = fit(states, "h", "", options, 0)
    assert result.scalars["overlap_covered"]["interval"][1] < result.scalars["overlap_covered_floor"]["value"] - 0.2
    states = replace(states, explored_N=np.repeat([False, True, False], size))
    result, _ = fit(states, "h", "", options, 0)
    assert f"without {EPISODES} episodes in which the agent explored" in result.notes["explored"]
    for name in ("inside", "covered", "told_apart"):
        gap = result.scalars[f"overlap_{name}"]["value"] - result.scalars[f"overlap_{name}_floor"]["value"]
        assert abs(gap) < 0.15, name
    assert result.arrays["kept"].sum() == 2 * size
    result, _ = fit(replace(states, explored_N=states.source_N == 0), "h", "", options, 0)
    assert "0 real states of 0 episodes" in result.notes["overlap"] and "without exploration" in result.notes["overlap"]


def test_too_few_states_to_compare_are_a_note() -> None:
    x = walk(np.random.default_rng(0), EPISODES, 3).astype(np.float32)
    source, unit = np.zeros(len(x)), np.arange(len(x)) // STEPS
    source[-3 * STEPS :] = 1  # three simulated episodes
    options = FitOptions(ica_size=0, nmf_size=0, clusters=3, surrogates=0, embedding=("pca",))
    result, _ = fit(pooled(x, source, unit), "h", "", options, 0)
    assert "90 simulated ones of 3 are too few" in result.notes["overlap"] and "overlap" not in result.tables


def test_too_few_or_equal_states_for_the_clusters_are_refused() -> None:
    x = np.repeat(walk(np.random.default_rng(0), 1, 3)[:4], 30, 0).astype(np.float32)
    both = pooled(x, np.zeros(len(x)), np.arange(len(x)) // STEPS)
    options = FitOptions(pca_size=2, ica_size=0, nmf_size=0, surrogates=0, embedding=("pca",))
    with pytest.raises(UserError, match="only 4 different states, so that of 6 clusters some would be empty"):
        fit(both, "h", "", FitOptions(**{**vars(options), "clusters": 6}), 0)
    with pytest.raises(UserError, match="120 steps are too few for 32 clusters"):
        fit(both, "h", "", options, 0)


def test_figures_are_of_what_there_is(tmp_path: Path) -> None:
    """Head weights without ICA are drawn; courses and paths of episodes of one state each are not."""
    x = walk(np.random.default_rng(0), EPISODES, 3).astype(np.float32)
    options = FitOptions(ica_size=0, nmf_size=0, clusters=3, surrogates=0, embedding=("pca",))
    result, _ = fit(pooled(x, np.zeros(len(x)), np.arange(len(x)) // STEPS), "h", "", options, 0)
    result.arrays["head_weights_pca"], result.notes["action_names"] = np.ones((3, 3)), ["left", "right"]
    assert {"paths.png", "time_courses.png"} <= set(figures_of(result))
    figures_of(result)["heads.png"](result).savefig(tmp_path / "heads.png")
    result.arrays["index"] = np.stack([np.arange(len(x)), np.zeros(len(x), int)], 1)
    assert not {"paths.png", "time_courses.png"} & set(draw(result, tmp_path))


def test_states_are_coloured_by_what_is_known_of_them(tmp_path: Path) -> None:
    x = walk(np.random.default_rng(0), EPISODES, 3).astype(np.float32)
    states = pooled(x, np.zeros(len(x)), np.arange(len(x)) // STEPS)
    options = FitOptions(ica_size=0, nmf_size=2, clusters=3, surrogates=0, embedding=("pca",))
    n, episode = len(x), np.arange(len(x)) // STEPS
    reward = np.where((np.arange(n) % STEPS == STEPS - 1) & (episode % 2 == 0), 10.0, 0.1)  # the simulator's 0.1
    best = np.where(episode % 2 == 0, 10.0, 0.1)
    share, entropy = np.arange(n) % STEPS / (STEPS - 1), np.r_[np.nan, np.linspace(0, 2, n - 1)]
    more = {"share": share, "best_reward": best, "entropy": entropy}
    result, _ = fit(replace(states, reward_N=reward, more=more), "h", "", options, 0)
    assert set(colourings(result)) >= {"share", "entropy", "rewarded", "factor"}
    label, names = label_of(result, "rewarded")
    assert (label == episode % 2).all() and names == {0: "rewarded", 1: "not"}
    label, names = label_of(result, "factor")
    assert (label == result.arrays["c_nmf"].argmax(1)).all() and set(names.values()) <= {"nmf:0", "nmf:1"}
    result.notes |= {"action_names": ["a", "b", "c"], "distinct_actions": {"none": [0, 2], "b": [1]}}
    result.arrays["action"] = np.arange(n) % 3
    label, names = label_of(result, "action")  # actions that do the same have one colour and one name
    assert (label == (np.arange(n) % 3 == 1)).all() and names == {0: "none", 1: "b"}
    found = number_of(result, "share")
    assert found is not None and found[1:3] == (0, 1)
    figures_of(result)["map.png"](result).savefig(tmp_path / "map.png")
    text = page(result)
    assert "://" not in text and len(text) < 300_000
    for name in ("share", "best_reward", "entropy", "c_nmf"):  # a result of an earlier version
        del result.arrays[name]
    assert not {"share", "entropy", "rewarded", "factor"} & set(colourings(result))
    page(result)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"ica_size": -1}, "--ica_size -1: at least 0"),
        ({"most_states": -1}, "--most_states -1"),
        ({"embedding": ()}, "--embedding: name at least one"),
        ({"embedding": ("pca", "pca")}, "none twice"),
    ],
)
def test_settings_that_mean_nothing(flags: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check(FitOptions(**flags))


def test_stretches_end_where_any_key_changes() -> None:
    label_N, episode_N = np.array([2, 2, 2, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 1])
    assert [x.tolist() for x in stretches(label_N)] == [[0, 3, 5], [3, 2, 1]]
    assert [x.tolist() for x in stretches(label_N, episode_N)] == [[0, 2, 3, 5], [2, 1, 2, 1]]
    assert [x.tolist() for x in stretches(label_N[:1])] == [[0], [1]]
