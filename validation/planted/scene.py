"""A planted world with what was recorded in it.  E episodes, X stimuli; other axes as in core.contracts."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.shared.directions import fit_ica
from core.directions import Basis
from core.roll import Simulator
from envs.planted import SIZE, Kind, PlantedModel, PlantedOptions, planted_simulator, record_planted
from envs.planted_truth import PlantedTruth, truth

SEEN_STEPS = 32  # of a recorded episode


class Scene(NamedTuple):
    """A drawn world, in double precision, and episodes of its agent."""

    options: PlantedOptions
    known: PlantedTruth
    simulator: Simulator[PlantedModel]
    h_NH: np.ndarray
    c_NK: np.ndarray
    x_NX: np.ndarray
    index_N2: np.ndarray  # (episode, step)
    z_EZ: Tensor  # a latent an episode, from a step of it

    @property
    def episode_N(self) -> np.ndarray:
        episode: np.ndarray = self.index_N2[:, 0]
        return episode


def draw(
    kind: Kind, seed: int, episodes: int = 48, steps: int = SEEN_STEPS, start: int = 4, hazard: float = 0.0,
    **options: Any,
) -> Scene:  # fmt: skip
    """A world of its own seed, recorded; latents from step ``start`` of every episode, or its last if it ends before
    (with ``hazard``; without, none does)."""
    chosen = PlantedOptions(kind=kind, seed=seed, hazard=hazard, **options)
    known = truth(chosen, torch.float64)
    recorded = record_planted(chosen, episodes, steps, seed)
    h_NH = np.concatenate([e.h for e in recorded]).astype(np.float64)
    lengths = [len(e.h) for e in recorded]
    index_N2 = np.stack([np.repeat(np.arange(episodes), lengths), np.concatenate([np.arange(n) for n in lengths])], 1)
    first_E = [min(start, n - 1) for n in lengths]
    z_EZ = np.stack(
        [np.concatenate([e.truth["stimulus"][t], e.h[t - 1]]) for e, t in zip(recorded, first_E, strict=True)]
    )
    return Scene(
        options=chosen,
        known=known,
        simulator=planted_simulator(chosen, torch.float64),
        h_NH=h_NH,
        c_NK=known.basis.project(torch.from_numpy(h_NH)).numpy(),
        x_NX=np.concatenate([e.truth["stimulus"] for e in recorded]).astype(np.float64),
        index_N2=index_N2,
        z_EZ=torch.from_numpy(z_EZ.astype(np.float64)),
    )


def match(planted: Basis, found: Basis) -> tuple[np.ndarray, np.ndarray]:
    """(for every planted direction the found one that is its match, their cosine), one to one, by |cos| of how a unit
    of each moves the state."""
    from scipy.optimize import linear_sum_assignment

    unit = [b.lift_change(torch.eye(b.size, dtype=torch.float64)) for b in (planted, found)]
    a, b = (u / u.norm(dim=1, keepdim=True) for u in unit)
    cosine = (a @ b.T).numpy()
    rows, columns = linear_sum_assignment(-np.abs(cosine))
    return columns, cosine[rows, columns]


def fitted_ica(kind: Kind, seed: int) -> Basis:
    """Independent components of a world's recorded states.  What it says on stderr is about one of many fits and is
    kept in the basis' facts."""
    scene = draw(kind, seed, episodes=200, steps=64)
    late = scene.index_N2[:, 1] > 0
    with contextlib.redirect_stderr(io.StringIO()):
        ica = fit_ica(scene.h_NH[late], SIZE, restarts=4, seed=seed, episode_N=scene.episode_N[late])
    return ica.to(dtype=torch.float64)


def negated(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the wrong sign: what a method that is broken on purpose gives."""
    return {name: -x for name, x in tensors.items()}
