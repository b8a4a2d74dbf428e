"""Centred kernel alignment of two layers from products of different episodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analysis.shared.probe_fits import exchanged
from analysis.shared.units import stretches


class Layer(NamedTuple):
    """States of one agent, centred, and which rows are of which episode."""

    x_NP: np.ndarray
    starts_E: np.ndarray  # first row of each episode
    count_E: np.ndarray

    @classmethod
    def of(cls, x_NP: np.ndarray, episode_N: np.ndarray) -> Layer:
        """Rows of an episode must be consecutive."""
        return cls(np.asarray(x_NP, np.float64) - np.mean(x_NP, 0), *stretches(episode_N))

    @property
    def sum_EP(self) -> np.ndarray:
        out: np.ndarray = np.add.reduceat(self.x_NP, self.starts_E)
        return out


BLOCK = 1 << 22  # numbers of a product held at once


def covariance(a: Layer, b: Layer, weight_GE: np.ndarray) -> np.ndarray:
    """Squared Frobenius norm of the covariance of a's and b's states without its bias, float64 [G], of the episodes
    that have weight 1 and not 0.  NaN of fewer than 4 episodes.

    The norm of a sample covariance is too large, since noise does not cancel in a square.  Here only products of
    different episodes enter, so that neither a step nor its neighbours in time are multiplied with themselves: the
    U-statistic of Song et al. (2012, JMLR 13, eq. 5) with episodes as units, in the space of features, where it takes
    the memory of E x P x Q numbers in blocks.  (Debiased CKA: Nguyen, Raghu and Kornblith 2021, arXiv:2010.15327.)
    """
    n = len(a.count_E)
    m_G, steps_G = weight_GE.sum(1), weight_GE @ a.count_E
    sum_EP, sum_EQ = a.sum_EP, b.sum_EP
    sum_GP, sum_GQ = weight_GE @ sum_EP, weight_GE @ sum_EQ
    parts_a, parts_b = np.split(a.x_NP, a.starts_E[1:]), np.split(b.x_NP, b.starts_E[1:])
    squares_G, between_G = np.zeros((2, len(weight_GE)))
    ends_EP, own_E = np.zeros_like(sum_EP), np.zeros(n)
    step = max(1, BLOCK // (max(n, len(weight_GE)) * sum_EP.shape[1]))
    for q in range(0, sum_EQ.shape[1], step):
        columns = slice(q, q + step)
        product_EPQ = np.stack([x.T @ y[:, columns] for x, y in zip(parts_a, parts_b, strict=True)])
        flat_EF = product_EPQ.reshape(n, -1)
        whole_GF = weight_GE @ flat_EF
        squares_G += (whole_GF**2).sum(1) - weight_GE @ (flat_EF**2).sum(1)
        # Sums over distinct episodes of (sum of a) . product . (sum of b): all, less those that meet themselves.
        whole_GPQ = whole_GF.reshape(-1, *product_EPQ.shape[1:])
        between_G += (np.einsum("gp,gpq->gq", sum_GP, whole_GPQ) * sum_GQ[:, columns]).sum(1)
        outer_EF = (sum_EP[:, :, None] * sum_EQ[:, None, columns]).reshape(n, -1)
        between_G -= (whole_GF * (weight_GE @ outer_EF)).sum(1)
        first_EQ = np.einsum("ep,epq->eq", sum_EP, product_EPQ)
        between_G -= ((weight_GE @ first_EQ) * sum_GQ[:, columns]).sum(1)
        last_EP = np.einsum("epq,eq->ep", product_EPQ, sum_EQ[:, columns])
        ends_EP += last_EP
        own_E += (sum_EP * last_EP).sum(1)
    between_G -= ((weight_GE @ ends_EP) * sum_GP).sum(1)
    between_G += 2 * weight_GE @ own_E
    k_EE, l_EE = sum_EP @ sum_EP.T, sum_EQ @ sum_EQ.T
    for gram in (k_EE, l_EE):
        np.fill_diagonal(gram, 0)
    to_k_GE, to_l_GE = (weight_GE * (weight_GE @ gram) for gram in (k_EE, l_EE))
    apart_G = to_k_GE.sum(1) * to_l_GE.sum(1) - 4 * (to_k_GE * to_l_GE).sum(1)
    apart_G += 2 * (weight_GE * (weight_GE @ (k_EE * l_EE))).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_G = steps_G / m_G
        found = squares_G / (m_G * (m_G - 1)) / mean_G**2
        found -= 2 * between_G / (m_G * (m_G - 1) * (m_G - 2)) / mean_G**3
        found += apart_G / (m_G * (m_G - 1) * (m_G - 2) * (m_G - 3)) / mean_G**4
    return np.where(m_G >= 4, found, np.nan)


def cka(both: np.ndarray, own_a: np.ndarray, own_b: np.ndarray) -> np.ndarray:
    """Debiased linear CKA from ``covariance`` of the pair and of each with itself: at most about 1, around 0 (also
    below) for unrelated states; NaN where one side never changes."""
    norm = np.sqrt(np.maximum(own_a, 0) * np.maximum(own_b, 0))
    return np.divide(both, norm, out=np.full(len(norm), np.nan), where=norm > 0)


def linear_cka(a: Layer, b: Layer) -> float:
    """Debiased linear CKA of all episodes."""
    once = np.ones((1, len(a.count_E)))
    return float(cka(covariance(a, b, once), covariance(a, a, once), covariance(b, b, once))[0])


def floor(a: Layer, b: Layer, episode_N: np.ndarray, *, rng: np.random.Generator, exchanges: int) -> np.ndarray:
    """CKA [exchanges] with the episodes of b exchanged: what time in the episode alone makes alike."""
    units, of_N = np.unique(episode_N, return_inverse=True)
    donors = [exchanged(of_N, rng.permutation(len(units))) for _ in range(exchanges)]
    return np.array([linear_cka(a, Layer.of(b.x_NP[donor], episode_N)) for donor in donors])
