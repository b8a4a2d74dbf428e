"""What there is to be found in the planted worlds: their graphs, directions, masks and closed forms.

Matrices [K, K] have the source first: entry (i, j) is i -> j.  X, K, H as in ``envs.planted``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from core.directions import Basis, fingerprint
from envs.planted import SIZE, Matrices, PlantedAgent, PlantedOptions, matrices, scene


@dataclass(frozen=True)
class PlantedTruth:
    """The truth about one planted world."""

    options: PlantedOptions
    basis: Basis  # the agent's directions
    names: tuple[str, ...]
    causal: int  # a direction that acts; -1: none does
    nuisance: int  # a direction that acts on nothing
    behaviours: int
    logits_AK: np.ndarray  # d logits / d c
    value_K: np.ndarray  # d value / d c, products apart
    in_agent_KK: np.ndarray  # bool, edges at lag 1 inside the agent (its own past excepted)
    through_world_KK: np.ndarray  # bool, edges at lag 1 by way of the action
    mask_XHW: np.ndarray | None  # bool [X, 64, 64], where the objects are (pixels)

    @property
    def numbers(self) -> Matrices:
        return matrices(self.options)

    def memory(self, behaviour: int = 0) -> np.ndarray:
        """d c(t+1) / d c(t) inside the agent in a behaviour, float64 [target, source].

        A product counts as an effect of its source, as strong as its gate is there; that of the gate, as
        strong as the source happens to be, is 0 on average and left out; so is the slope of a square, and which of two
        is the larger one depends on the state.
        """
        m = self.numbers
        W_KK = m.W_KK.copy()
        for p in m.products:
            if p.target is not None and p.gate in m.behaviour_switches:
                on = behaviour >> m.behaviour_switches.index(p.gate) & 1
                W_KK[p.target, p.source] += p.weight * (1 if on else -1)
        return W_KK

    def jacobian(self, probabilities_TA: np.ndarray, env_grads: bool = True, behaviour: int = 0) -> np.ndarray:
        """d c_j(T) / d c_i(0), float64 [K, K], along T steps whose actions had these probabilities.

        The action's gradient is that of the softmax (straight-through), so with ``env_grads`` the
        Jacobian depends on the probabilities; without, it is W^T whatever they are.  Products: see ``memory``.
        Not for the pixel world, whose brightness is not linear.
        """
        if self.mask_XHW is not None:
            raise ValueError("the pixel world's Jacobian depends on its state")
        m, W_KK = self.numbers, self.memory(behaviour)
        of_x, of_c = np.zeros((SIZE, SIZE)), np.eye(SIZE)
        A_XX = np.where(np.diag(~np.isnan(m.flip_X)), 1.0, m.A_XX)
        for p in np.asarray(probabilities_TA, np.float64):
            slope_AA = np.diag(p) - np.outer(p, p)
            pushed = m.B_XA @ slope_AA @ m.policy_AK @ of_c if env_grads else 0.0
            of_x = A_XX @ of_x + pushed
            of_c = W_KK @ of_c + m.U_KX @ of_x
        return of_c.T

    def effect_of_actions(self, x_X: np.ndarray, c_K: np.ndarray, steps: int, sampled: bool = False) -> np.ndarray:
        """d c_j(steps) / d c_i(0) by way of the actions at steps 0 to steps - 1, float64 [K, K]; without noise of the
        world.

        x_X, c_K: world and directions at step 0.  sampled: of the expectation under the softmax policy, over all
        sequences of actions.  Otherwise of the mean with the softmax at one step and the likeliest action at all
        others, summed over that step (analysis.coupling.discrete_paths of a modal rollout).  The rest of the effect is
        direct.
        Not for the pixel world.
        """
        if self.mask_XHW is not None:
            raise ValueError("the pixel world's brightness is not linear")
        m = self.numbers
        stays = ~np.isnan(m.flip_X)

        def policy(c: np.ndarray, of_c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Probabilities [A], and their derivatives [A, K]."""
            e = np.exp(m.policy_AK @ c - (m.policy_AK @ c).max())
            p = e / e.sum()
            return p, (np.diag(p) - np.outer(p, p)) @ m.policy_AK @ of_c

        def onward(x: np.ndarray, c: np.ndarray, action: int) -> tuple[np.ndarray, np.ndarray]:
            x = np.where(stays, x, m.A_XX @ x + m.B_XA[:, action])
            after = m.W_KK @ c + m.U_KX @ x
            for p in m.products:
                if p.target is not None:
                    after[p.target] += p.weight * c[p.source] * c[p.gate]
            return x, after

        def memory(c: np.ndarray, of_c: np.ndarray) -> np.ndarray:
            W_KK = m.W_KK.copy()
            for p in m.products:
                if p.target is not None:
                    W_KK[p.target, p.source] += p.weight * c[p.gate]
                    W_KK[p.target, p.gate] += p.weight * c[p.source]
            out: np.ndarray = W_KK @ of_c
            return out

        def expected(
            x: np.ndarray, c: np.ndarray, of_c: np.ndarray, chance: float, of_chance_K: np.ndarray, left: int
        ) -> np.ndarray:
            """Sum over sequences of d chance / d c(0) times c at their end."""
            if not left:
                return np.outer(of_chance_K, c)
            p, of_p = policy(c, of_c)
            of_next = memory(c, of_c)
            branches = [
                expected(*onward(x, c, a), of_next, chance * p[a], of_chance_K * p[a] + chance * of_p[a], left - 1)
                for a in range(len(p))
            ]
            out: np.ndarray = np.sum(branches, 0)
            return out

        x, c, of_c = np.asarray(x_X, np.float64), np.asarray(c_K, np.float64), np.eye(SIZE)
        if sampled:
            return expected(x, c, of_c, 1.0, np.zeros(SIZE), steps)
        out = np.zeros((SIZE, SIZE))
        for t in range(steps):
            p, of_p = policy(c, of_c)
            for a in range(len(p)):
                x_a, c_a = onward(x, c, a)
                for _ in range(t + 1, steps):
                    x_a, c_a = onward(x_a, c_a, int((m.policy_AK @ c_a).argmax()))
                out += np.outer(of_p[a], c_a)
            x, c, of_c = *onward(x, c, int(p.argmax())), memory(c, of_c)
        return out

    def effects(self, lags: Sequence[int], env_grads: bool = True, behaviour: int = 0) -> np.ndarray:
        """The Jacobian at each lag, float64 [lags, K, K], where all actions are equally likely: its signs are those of
        every other Jacobian of this world, its zeros are zeros everywhere (``waiting`` of the confounded world apart,
        whose push may go either way)."""
        even = np.full((max(lags), 3), 1 / 3)
        linear = self if self.mask_XHW is None else _as_vector(self)
        return np.stack([linear.jacobian(even[:lag], env_grads, behaviour) for lag in lags])

    def value_change(self, steps: int) -> np.ndarray:
        """d value(steps) / d c_i(0) along the agent's memory alone, float64 [K]; the whole of it in a linear world."""
        out: np.ndarray = self.value_K @ np.linalg.matrix_power(self.memory(), steps)
        return out

    def acts(self) -> np.ndarray:
        """bool [K]: whether a direction moves logits, value or, sooner or later, another direction."""
        lags = range(1, SIZE + 1)
        effects = np.concatenate([self.effects(lags, behaviour=b) for b in range(self.behaviours)])
        reaches = (effects != 0).any(0) & ~np.eye(SIZE, dtype=bool)
        out: np.ndarray = reaches.any(1) | (self.value_K != 0) | (self.logits_AK - self.logits_AK.mean(0) != 0).any(0)
        for p in self.numbers.products:
            out[[p.source, p.gate]] = True
        return out

    def lagged_correlation(self, lag: int, rows: int, first: int = 1) -> np.ndarray:
        """Correlation of c_i(t) with c_j(t + lag), float64 [K, K], pooled over episodes of ``rows`` observations from
        step ``first`` on.

        Raises ValueError where actions, switches or products make it depend on more than second moments.
        """
        m = self.numbers
        if m.B_XA.any() or m.products or not np.isnan(m.flip_X).all() or self.mask_XHW is not None:
            raise ValueError(f"the {self.options.kind} world has no closed form of its correlations")
        zero = np.zeros((SIZE, SIZE))
        go = np.block([[m.A_XX, zero], [m.U_KX @ m.A_XX, m.W_KK]])
        shock, begin = (np.vstack([n, m.U_KX @ n]) for n in (m.noise_XX, m.first_XX))
        covariances = [begin @ begin.T]
        for _ in range(rows - 1):
            covariances.append(go @ covariances[-1] @ go.T + shock @ shock.T)
        pairs = range(first, rows - lag)
        ahead = np.linalg.matrix_power(go, lag)
        of_c = slice(SIZE, None)
        cross = np.mean([(covariances[t] @ ahead.T)[of_c, of_c] for t in pairs], 0)
        source = np.mean([covariances[t][of_c, of_c].diagonal() for t in pairs], 0)
        target = np.mean([covariances[t + lag][of_c, of_c].diagonal() for t in pairs], 0)
        out: np.ndarray = cross / np.sqrt(source[:, None] * target)
        return out

    def cohens_d(self) -> np.ndarray:
        """Cohen's d of every direction between a behaviour's steps and all others, float64 [behaviours, K]."""
        mean_BK, var_K = self.mixture()
        count = len(mean_BK)
        out = np.zeros_like(mean_BK)
        for b in range(count):
            others = np.delete(mean_BK, b, 0)
            inside, outside = 1 / count, 1 - 1 / count
            pooled = inside * var_K + outside * (var_K + others.var(0))
            out[b] = (mean_BK[b] - others.mean(0)) / np.sqrt(pooled)
        return out

    def mixture(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean of c in every behaviour [behaviours, K], its variance inside one [K]) of the mixture; behaviours are
        equally frequent and the variance is the same in all."""
        if self.options.kind != "mixture":
            raise ValueError(f"the {self.options.kind} world is no mixture")
        m = self.numbers
        x_BX = np.zeros((self.behaviours, SIZE))
        for i, switch in enumerate(m.behaviour_switches):
            x_BX[:, switch] = [1.0 if b >> i & 1 else -1.0 for b in range(self.behaviours)]
        still = np.isnan(m.flip_X)  # of the stimuli, those that are noise
        variance = (m.U_KX[:, still] ** 2 * (m.noise_XX[still] ** 2).sum(1)).sum(1)
        return x_BX @ m.U_KX.T, variance + (m.W_KK**2) @ variance

    def cluster_agreement(self, grid: int = 801) -> float:
        """Adjusted Rand index of the behaviours with the nearest of their mean states, in z-scored neurons: what
        k-means can reach there, by quadrature over the plane of the four means.  Flips are rare and left out."""
        m = self.numbers
        mean_BK, var_K = self.mixture()
        std_H = np.sqrt((m.R_HK**2) @ (var_K + mean_BK.var(0)))
        centre_BH = (mean_BK @ m.R_HK.T) / std_H
        plane_HP = np.linalg.svd(centre_BH)[2][:2].T
        spread_HK = m.R_HK / std_H[:, None] * np.sqrt(var_K)
        covariance_PP = plane_HP.T @ spread_HK @ spread_HK.T @ plane_HP
        at = np.linspace(-8, 8, grid)
        unit_NP = np.stack(np.meshgrid(at, at), -1).reshape(-1, 2)
        weight_N = np.exp(-0.5 * (unit_NP**2).sum(1))
        noise_NP = unit_NP @ np.linalg.cholesky(covariance_PP).T
        centre_BP = centre_BH @ plane_HP
        joint = np.zeros((len(mean_BK), len(mean_BK)))
        for b, centre in enumerate(centre_BP):
            nearest = (((centre + noise_NP)[:, None] - centre_BP) ** 2).sum(-1).argmin(1)
            joint[b] = np.bincount(nearest, weight_N, minlength=len(mean_BK))
        return rand_index(joint / joint.sum())


def rand_index(joint: np.ndarray) -> float:
    """Adjusted Rand index of two labellings whose joint distribution this is (the limit of many points)."""
    both, rows, columns = (joint**2).sum(), (joint.sum(1) ** 2).sum(), (joint.sum(0) ** 2).sum()
    chance = rows * columns
    return float((both - chance) / ((rows + columns) / 2 - chance))


def truth(options: PlantedOptions | None = None, dtype: torch.dtype = torch.float32) -> PlantedTruth:
    """The planted truth of a world; the basis belongs to ``PlantedAgent(options)`` in float32."""
    options = PlantedOptions() if options is None else options
    m = matrices(options)
    R = torch.tensor(m.R_HK, dtype=dtype)
    basis = Basis(
        "planted",
        torch.zeros(SIZE, dtype=dtype),
        torch.ones(SIZE, dtype=dtype),
        R,
        R.T.contiguous(),
        agent=fingerprint(PlantedAgent(options)),
        facts={"names": list(m.names)},
    )
    # A change of all logits alike changes no action.
    steers_AK = m.policy_AK - m.policy_AK.mean(0)
    moved_XK = (np.abs(m.B_XA).sum(1)[:, None] > 0) & (np.abs(steers_AK).sum(0)[None] > 0)
    in_agent = m.W_KK != 0
    for p in m.products:
        if p.target is not None:
            in_agent[p.target, [p.source, p.gate] if p.larger else p.source] = True
    return PlantedTruth(
        options=options,
        basis=basis,
        names=m.names,
        causal=m.causal,
        nuisance=m.nuisance,
        behaviours=2 ** len(m.behaviour_switches),
        logits_AK=m.policy_AK,
        value_K=m.value_K,
        in_agent_KK=(in_agent & ~np.eye(SIZE, dtype=bool)).T,
        through_world_KK=((np.abs(m.U_KX) @ moved_XK) > 0).T,
        mask_XHW=scene(options).mask_XHW if options.kind == "pixels" else None,
    )


def _as_vector(pixels: PlantedTruth) -> PlantedTruth:
    """The pixel world's truth as if its brightness were the stimulus: the same signs and zeros."""
    from dataclasses import replace

    return replace(pixels, mask_XHW=None)
