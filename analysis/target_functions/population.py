"""The population that a start comes from, and coordinates in which it is round and of unit size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.shared.units import played_together
from core.contracts import UserError
from core.episodes import RolloutStore, spread_over_episodes
from core.roll import Simulator
from generative.record_samples import informed_latents, random_latents


@dataclass(frozen=True)
class Population:
    """Where a population of latents lies: ``z = mean + spread @ u``, u of mean 0 and covariance about 1.

    ``distance`` of a latent is |u|^2 / Z, on average about 1 in the population itself (a Gaussian's squared
    Mahalanobis distance a dimension; for the prior this is ||z||^2 against its expected value).
    """

    z_NZ: Tensor
    mean_Z: Tensor
    spread_ZZ: Tensor  # a Cholesky factor of the covariance
    distance_N: Tensor

    @classmethod
    def of(cls, z_NZ: Tensor) -> Population:
        """Covariance shrunk towards a sphere as the data asks (Ledoit & Wolf 2004), so that it has an inverse.

        UserError where there is none: all latents are the same."""
        from sklearn.covariance import ledoit_wolf

        covariance, _ = ledoit_wolf(z_NZ.cpu().double().numpy())
        spread, failed = torch.linalg.cholesky_ex(torch.from_numpy(covariance))
        if failed or not torch.isfinite(spread).all():
            raise UserError(f"the simulator tells no window from another: all {len(z_NZ)} latents are the same")
        spread = spread.to(z_NZ)
        mean = z_NZ.mean(0)
        return cls(z_NZ, mean, spread, distance_from(mean, spread, z_NZ))

    def inwards(self, z_BZ: Tensor) -> Tensor:
        """u [B, Z]."""
        return torch.linalg.solve_triangular(self.spread_ZZ, (z_BZ - self.mean_Z).T, upper=False).T

    def outwards(self, u_BZ: Tensor) -> Tensor:
        """z [B, Z], not yet normalised."""
        return self.mean_Z + u_BZ @ self.spread_ZZ.T

    def distance(self, z_BZ: Tensor) -> Tensor:
        """|u|^2 / Z [B]."""
        return distance_from(self.mean_Z, self.spread_ZZ, z_BZ)

    def excess(self, z_BZ: Tensor) -> Tensor:
        """How many standard deviations of the population's distances z is further out than their mean; not
        below 0 [B]."""
        typical = self.distance_N.mean()
        spread = self.distance_N.std().clamp_min(1e-3 * typical)  # on a sphere all are equally far out
        return torch.relu((self.distance(z_BZ) - typical) / spread)

    def nearer_share(self, z_BZ: Tensor) -> np.ndarray:
        """Share of the population, in percent, that is less far out than each z [B]."""
        far = self.distance(z_BZ).cpu().numpy()
        return 100 * np.searchsorted(np.sort(self.distance_N.cpu().numpy()), far) / len(self.distance_N)


def distance_from(mean_Z: Tensor, spread_ZZ: Tensor, z_BZ: Tensor) -> Tensor:
    u = torch.linalg.solve_triangular(spread_ZZ, (z_BZ - mean_Z).T, upper=False)
    return u.square().mean(0)


class Starts(NamedTuple):
    """Latents to start from (or to choose starts among), and as many others of the same population as are tried."""

    z_SZ: Tensor
    where_S2: np.ndarray  # int64, (episode, step) of the first frame a start was inferred from; -1: random
    unit_S: np.ndarray  # equal for starts that are not independent: of one episode, or of lives of one world
    population: Population

    def best(self, y_S: np.ndarray, screen: int) -> Starts:
        """Of every ``screen`` neighbours the one with the largest y; NaN is never chosen where a number is."""
        y = np.where(np.isnan(y_S), -np.inf, y_S).reshape(-1, screen)
        rows = np.arange(len(y)) * screen + y.argmax(1)
        return Starts(self.z_SZ[rows], self.where_S2[rows], self.unit_S[rows], self.population)


def random_starts(simulator: Simulator[Any], samples: int, controls: int, seed: int, device: torch.device) -> Starts:
    """From the prior."""
    z = random_latents(simulator.world, samples + controls, torch.Generator(device).manual_seed(seed))
    return Starts(z[:samples], np.full((samples, 2), -1), np.arange(samples), Population.of(z[samples:]))


def informed_starts(
    simulator: Simulator[Any], store: RolloutStore, samples: int, controls: int, seed: int, device: torch.device
) -> Starts:
    """Latents drawn from what real windows tell (mean and spread, as in training): the starts from as many episodes
    as there are, the controls from the other windows (some more than once, where there are too few)."""
    rng = np.random.default_rng(seed)
    windows = store.window_starts(simulator.world.initial_frames, going_on=True)
    rows = np.arange(len(windows))
    if len(rows) < samples:
        raise UserError(f"{store.path} has {len(rows)} windows to start from, --samples x --screen asks for {samples}")
    chosen = spread_over_episodes(rows, windows[:, 0], samples, rng)
    others = np.setdiff1d(rows, chosen) if len(rows) > samples else rows
    controls_at = rng.choice(others, controls, replace=len(others) < controls)
    draws = torch.Generator(device).manual_seed(seed)
    z, population = (
        informed_latents(simulator.world, store, windows[at], device, draws) for at in (chosen, controls_at)
    )
    return Starts(z, windows[chosen], played_together(store)[windows[chosen, 0]], Population.of(population))
