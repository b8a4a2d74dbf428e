"""Fitted directions find planted sources, say how stable they are, and refuse what cannot be fitted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from analysis.shared import directions
from analysis.shared.directions import fit_ica, fit_nmf, fit_pca, icasso, neuron_basis, principal_scores, state_rank
from core.contracts import UserError
from core.directions import Basis

H, K, N = 10, 4, 3000


def mixture(sources_NK: np.ndarray, seed: int = 0) -> np.ndarray:
    """Sources mixed into H neurons, with an offset, unequal scales and a little noise."""
    rng = np.random.default_rng(seed)
    mixing_KH = rng.standard_normal((sources_NK.shape[1], H))
    noise_NH = 0.02 * rng.standard_normal((len(sources_NK), H))
    out: np.ndarray = 3 + (sources_NK @ mixing_KH + noise_NH) * np.linspace(0.5, 4, H)
    return out


@pytest.fixture(scope="module")
def sources() -> np.ndarray:
    """Four independent skewed sources [N, K] (skewness +2)."""
    return np.random.default_rng(0).exponential(size=(N, K)) - 1


@pytest.fixture(scope="module")
def ica(sources: np.ndarray) -> Basis:
    return fit_ica(mixture(sources), K, "agent", restarts=10, seed=0)


def fitted(kind: str, h_NH: np.ndarray) -> Basis:
    return {
        "pca": lambda: fit_pca(h_NH, K),
        "ica": lambda: fit_ica(h_NH, K, restarts=2),
        "nmf": lambda: fit_nmf(h_NH, K),
        "neurons": lambda: neuron_basis(h_NH),
    }[kind]()


@pytest.mark.parametrize("kind", ["pca", "ica", "nmf", "neurons"])
def test_every_basis_is_one(kind: str, sources: np.ndarray) -> None:
    h_NH = mixture(sources)
    basis = fitted(kind, h_NH)
    assert basis.kind == kind
    c = torch.randn(7, basis.size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(basis.project(basis.lift(c)), c, atol=1e-4, rtol=1e-4)
    fitted_c = basis.project(torch.from_numpy(h_NH).float())
    torch.testing.assert_close(fitted_c.mean(0), torch.zeros(basis.size), atol=1e-4, rtol=0)
    torch.testing.assert_close(fitted_c.std(0, correction=0), torch.ones(basis.size), atol=1e-3, rtol=0)


def test_pca_is_the_known_answer() -> None:
    """Two z-scored neurons with correlation r: components (1, +-1) / sqrt 2, shares (1 +- r) / 2."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(50_000)
    h_NH = np.stack([a, 0.6 * a + 0.8 * rng.standard_normal(50_000)], 1) * [1, 100] + [5, -7]
    basis = fit_pca(h_NH, 2)
    assert basis.facts["explained"] == pytest.approx([0.8, 0.2], abs=0.01)
    np.testing.assert_allclose(np.abs(basis.lift_KH.numpy()), np.sqrt([[0.8, 0.8], [0.2, 0.2]]), atol=0.01)
    np.testing.assert_allclose(basis.std_H.numpy(), h_NH.std(0), rtol=1e-4)


def test_full_pca_loses_nothing_and_shares_sum_to_one(sources: np.ndarray) -> None:
    h_NH = mixture(sources)
    basis = fit_pca(h_NH, H)
    h = torch.from_numpy(h_NH[:50]).float()
    torch.testing.assert_close(basis.lift(basis.project(h)), h, atol=1e-3, rtol=1e-4)
    assert sum(basis.facts["explained"]) == pytest.approx(1)
    assert basis.facts["explained"] == sorted(basis.facts["explained"], reverse=True)


def test_ica_finds_the_sources_with_their_sign(ica: Basis, sources: np.ndarray) -> None:
    c = ica.project(torch.from_numpy(mixture(sources)).float()).numpy()
    correlation = np.corrcoef(c.T, sources.T)[:K, K:]
    assert sorted(np.abs(correlation).argmax(1)) == list(range(K))
    assert correlation.max(1).min() > 0.99  # not |.|: positive skewness fixes the sign
    assert min(ica.facts["stability"]) > 0.9
    assert ica.facts["converged"] and ica.facts["restarts_converged"] == 10
    assert ica.agent == "agent"


def test_ica_stability_tells_sources_from_a_gaussian_plane(sources: np.ndarray) -> None:
    """Two of the four sources are Gaussian: their plane has no axes, and Iq must say so."""
    mixed = sources.copy()
    mixed[:, 2:] = np.random.default_rng(1).standard_normal((N, 2))
    h_NH = mixture(mixed)
    basis = fit_ica(h_NH, K, restarts=20, seed=0)
    stability = basis.facts["stability"]
    assert stability == sorted(stability, reverse=True)
    assert min(stability[:2]) > 0.9 and max(stability[2:]) < 0.8
    c = basis.project(torch.from_numpy(h_NH).float()).numpy()
    correlation = np.abs(np.corrcoef(c.T, mixed.T)[:K, K:])
    assert correlation[:2, :2].max(1).min() > 0.98 and correlation[2:, :2].max() < 0.2


def test_ica_resamples_whole_episodes(sources: np.ndarray) -> None:
    """Three sources speak up in the same one episode only: a third of the bootstraps of episodes miss it, and then
    their space has no axes."""
    episode_N = np.repeat(np.arange(30), N // 30)
    mixed = np.concatenate([sources[:, :1], np.random.default_rng(2).standard_normal((N, 3))], 1)
    for i in range(3):
        mixed[700 + 33 * i : 733 + 33 * i, 1 + i] += 8
    h_NH = mixture(mixed)
    rows = fit_ica(h_NH, K, restarts=10, seed=0)
    episodes = fit_ica(h_NH, K, restarts=10, seed=0, episode_N=episode_N)
    assert episodes.facts["resampled"] == "episodes" and rows.facts["resampled"] == "rows"
    assert min(rows.facts["stability"]) > 0.9 and min(episodes.facts["stability"]) < 0.8


def test_ica_is_seeded(sources: np.ndarray, ica: Basis) -> None:
    again = fit_ica(mixture(sources), K, "agent", restarts=10, seed=0)
    assert torch.equal(again.lift_KH, ica.lift_KH) and again.facts == ica.facts


def test_non_convergence_is_a_fact_and_is_printed(sources: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    basis = fit_ica(mixture(sources), K, restarts=3, max_iterations=1, tolerance=1e-12)
    assert basis.facts["converged"] is False and basis.facts["restarts_converged"] == 0
    assert "ICA did not converge in 1 iterations in 3 of 3 restarts and in the final fit" in capsys.readouterr().err
    basis = fit_nmf(mixture(sources), K, max_iterations=1)
    assert basis.facts["converged"] is False
    assert "NMF did not converge" in capsys.readouterr().err


def test_last_digits_choose_no_components() -> None:
    """Where most sources are nearly Gaussian FastICA's own iteration goes round and round, so that its end hung on the
    number of iterations and on the processor's rounding."""
    rng = np.random.default_rng(5)
    sources = np.concatenate([rng.laplace(size=(3000, 5)), rng.standard_normal((3000, 11))], 1)
    h_NH = sources @ rng.standard_normal((16, 16))
    one, other = (
        fit_ica(x, 16, restarts=2, seed=0) for x in (h_NH, h_NH * (1 + 1e-9 * rng.standard_normal(h_NH.shape)))
    )
    assert one.facts["converged"] and one.facts["restarts_converged"] == 2
    assert torch.allclose(one.lift_KH, other.lift_KH, atol=1e-3)


def test_other_warnings_are_not_swallowed() -> None:
    def warn() -> None:
        import warnings

        warnings.warn("something else", RuntimeWarning, stacklevel=1)

    with pytest.warns(RuntimeWarning, match="something else"):
        assert directions.caught(DeprecationWarning, warn) is False


def test_icasso_on_known_clusters() -> None:
    """Two identical pairs at a right angle: Iq 1; and the sign of an estimate does not matter."""
    index, centrotype = icasso(np.array([[1.0, 0], [-1, 0], [0, 2], [0, 1]]), 2)
    np.testing.assert_allclose(index, 1)
    np.testing.assert_allclose(np.abs(centrotype @ centrotype.T), np.eye(2), atol=1e-12)


def test_nmf_factors_are_non_negative_and_find_parts() -> None:
    rng = np.random.default_rng(0)
    parts_KH = np.array([[1.0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    # Codes that are often exactly zero make the factorisation unique.
    codes_NK = rng.exponential(size=(2000, 2)) * (rng.random((2000, 2)) < 0.5)
    basis = fit_nmf(codes_NK @ parts_KH + 0.01 * rng.random((2000, 6)), 2)
    assert (basis.lift_KH >= 0).all()
    cosine = torch.nn.functional.normalize(basis.lift_KH, dim=1) @ torch.from_numpy(parts_KH).float().T / 3**0.5
    np.testing.assert_allclose(np.sort(cosine.max(1).values.numpy()), 1, atol=0.02)
    assert sorted(cosine.argmax(1).tolist()) == [0, 1]
    assert basis.facts["relative_error"] < 0.1


@pytest.mark.parametrize("fit", [fit_pca, fit_ica, fit_nmf])
def test_bad_states_are_refused(fit: object, sources: np.ndarray) -> None:
    h_NH = mixture(sources[:200])
    with pytest.raises(UserError, match="the hidden state has 10 dimensions, choose 1 to 10"):
        fit(h_NH, H + 1)  # type: ignore[operator]
    with pytest.raises(UserError, match="choose 1 to 10"):
        fit(h_NH, 0)  # type: ignore[operator]
    with pytest.raises(UserError, match="too few for 4 directions"):
        fit(h_NH[:4], 4)  # type: ignore[operator]
    broken = h_NH.copy()
    broken[3, 6] = np.nan
    with pytest.raises(UserError, match="neuron 6"):
        fit(broken, 2)  # type: ignore[operator]
    with pytest.raises(UserError, match="none of the hidden state's 10 neurons ever changes"):
        fit(np.full_like(h_NH, 1 / 3), 2)  # type: ignore[operator]


def test_rank_deficient_states_are_refused(sources: np.ndarray) -> None:
    h_NH = np.concatenate([sources, sources[:, :2] @ np.ones((2, 3))], 1)
    assert state_rank(h_NH) == 4
    fit_pca(h_NH, 4)
    with pytest.raises(UserError, match="only 4 independent directions, not in k = 5; ask for 4 at most"):
        fit_pca(h_NH, 5)
    with pytest.raises(UserError, match="only 4 independent directions, not in --ica_size 5; ask for 4 at most"):
        fit_ica(h_NH, 5, asked="--ica_size 5")


def test_one_restart_is_refused(sources: np.ndarray) -> None:
    with pytest.raises(UserError, match="at least 2 restarts"):
        fit_ica(mixture(sources), K, restarts=1)


def test_saved_and_loaded(tmp_path: object, ica: Basis) -> None:
    from pathlib import Path

    from core.artefacts import new_run
    from core.directions import load_basis

    out = Path(str(tmp_path)) / "run"
    with new_run(out, "hidden_states", {"seed": 0}) as run:
        ica.save(run.path)
    back = load_basis(out, "ica", agent="agent")
    assert torch.equal(back.project_HK, ica.project_HK) and back.facts == ica.facts
    with pytest.raises(UserError, match="fitted on agent"):
        load_basis(out, "ica", agent="another")


def test_principal_scores_are_centred_ordered_and_no_more_than_there_are(sources: np.ndarray) -> None:
    x_NF = sources @ np.random.default_rng(0).standard_normal((K, 7)) + 5  # of rank K
    scores_NK, share_K = principal_scores(x_NF, 99)
    assert scores_NK.shape == (len(x_NF), K) and share_K.sum() == pytest.approx(1)
    np.testing.assert_allclose(scores_NK.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(scores_NK.var(0) / x_NF.var(0).sum(), share_K, rtol=1e-6)
    first_NK, share = principal_scores(x_NF, 2)
    np.testing.assert_allclose(np.abs(first_NK), np.abs(scores_NK[:, :2]), atol=1e-6)
    assert share[0] > share[1]
    nothing_NK, none = principal_scores(np.ones((5, 3)), 2)
    assert nothing_NK.shape == (5, 0) and not len(none)
