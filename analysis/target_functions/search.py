"""Latents moved uphill on a target, beside the best of as many untrained ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.shared.gradients import samples_that_fit
from analysis.target_functions.config import TargetFunctionsConfig
from analysis.target_functions.population import Population, Starts
from analysis.target_functions.tables import summarise
from analysis.target_functions.targets import Target
from core import artefacts, ranks
from core.contracts import UserError
from core.figures import as_bytes
from core.files import Spool
from core.progress import bar
from core.roll import Simulator
from generative.record_samples import noise_of
from generative.simulator import require_finite

# Beside a gradient of length 1.  Adam's own, 1e-8, moves coordinates that hardly matter, and those whose gradient is a
# rounding error, as far as those that do.
ADAM_EPS = 0.1
SAME = 1e-6  # spread of a target over latents, of its size, up to which it is rounding error
BATCH = 64  # latents that are read at once
RESTART_DISTANCE = 0.5  # of a restart from its start, in standard deviations of the population


class Found(NamedTuple):
    """What an optimisation came to; R rows, I iterations."""

    z_RZ: Tensor  # the best on the way
    objective_R: Tensor
    y_IR: Tensor  # [I+1, R], the target before each step of Adam and after the last
    distance_IR: Tensor


def optimise(
    simulator: Simulator[Any], target: Target, z_RZ: Tensor, population: Population, scale: float, config: Any
) -> Found:
    """Move every z so that its rollout shows the target, by Adam on gradients of length 1 a row.

    Maximises ``sign * y / scale - prior_weight / 2 * excess^2`` over u, with z = normalise(mean + spread u).
    Rows do not touch each other.  config: steps, iterations, learning_rate, prior_weight, env_grads.
    """
    u = population.inwards(z_RZ.detach()).requires_grad_()
    adam = torch.optim.Adam([u], lr=config.learning_rate, eps=ADAM_EPS)
    best_z = z_RZ.detach().clone()
    best = torch.full_like(z_RZ[:, 0], -torch.inf)
    ys, distances = [], []
    for i in range(config.iterations + 1):
        z = simulator.world.normalise(population.outwards(u))
        y = target.read(simulator.rollout(z, config.steps, env_grads=config.env_grads))
        price = config.prior_weight / 2 * population.excess(z) ** 2
        objective = target.sign * y / scale - price
        ys.append(y.detach())
        distances.append(population.distance(z.detach()))
        better = objective.detach() > best  # never where the rollout ended too early to be read
        best = torch.where(better, objective.detach(), best)
        best_z = torch.where(better[:, None], z.detach(), best_z)
        if i == config.iterations:
            break
        adam.param_groups[0]["lr"] = config.learning_rate * (1 - i / config.iterations)
        (g,) = torch.autograd.grad(-torch.where(y.isnan(), -price, objective).sum(), u)
        u.grad = g / g.norm(dim=1, keepdim=True).clamp_min(torch.finfo(g.dtype).tiny)
        adam.step()
    return Found(best_z, best, torch.stack(ys), torch.stack(distances))


def optimise_all(
    simulator: Simulator[Any], target: Target, starts: Starts, scale: float, config: TargetFunctionsConfig, tick: Any
) -> Found:
    """``optimise`` from every start and its restarts, in chunks that fit into memory; the best of each start's."""
    s, r = len(starts.z_SZ), config.restarts
    generator = torch.Generator().manual_seed(config.seed)
    jitter = torch.randn(r, s, starts.z_SZ.shape[1], generator=generator).to(starts.z_SZ)
    jitter[0] = 0
    u = starts.population.inwards(starts.z_SZ) + RESTART_DISTANCE * jitter
    z = simulator.world.normalise(starts.population.outwards(u.flatten(0, 1)))
    size = samples_that_fit(simulator, z, config.steps + 1, config.memory_gb * 1e9)
    parts = []
    for found in ranks.each(
        z.split(size), lambda some: optimise(simulator, target, some, starts.population, scale, config),
        "lower --memory_gb",
    ):  # fmt: skip
        parts.append(Found(*found))
        tick(len(parts[-1].z_RZ))
    whole = Found(
        torch.cat([p.z_RZ for p in parts]),
        torch.cat([p.objective_R for p in parts]),
        torch.cat([p.y_IR for p in parts], 1),
        torch.cat([p.distance_IR for p in parts], 1),
    )
    rows = torch.arange(s, device=z.device) + s * whole.objective_R.view(r, s).argmax(0)
    return Found(whole.z_RZ[rows], whole.objective_R[rows], whole.y_IR[:, rows], whole.distance_IR[:, rows])


@torch.no_grad()
def read_all(simulator: Simulator[Any], targets: Sequence[Target], z_NZ: Tensor, steps: int, tick: Any) -> np.ndarray:
    """y [targets, N] of modal rollouts from many latents; NaN where a rollout ends before it can be
    read.  UserError where the simulator makes no numbers."""

    def read(z_BZ: Tensor) -> Tensor:
        out = simulator.rollout(z_BZ, steps)
        require_finite(out)
        return torch.stack([target.read(out) for target in targets])

    parts = []
    for y in ranks.each(z_NZ.split(BATCH), read):
        parts.append(y)
        tick(y.shape[1])
    return torch.cat(parts, 1).cpu().double().numpy()


@torch.no_grad()
def read_noisy(simulator: Simulator[Any], target: Target, z_SZ: Tensor, config: TargetFunctionsConfig) -> np.ndarray:
    """Mean y [S] of ``noisy`` stochastic rollouts; draw n of start s has the same noise for every z_SZ."""
    s, ids = len(z_SZ), np.arange(config.noisy * len(z_SZ))

    def draw(n: int) -> Tensor:
        parts = []
        for first in range(0, s, BATCH):
            some = ids[n * s + first : n * s + min(first + BATCH, s)].tolist()
            noise = noise_of(simulator, config.seed, some, config.steps, z_SZ.device)
            parts.append(target.read(simulator.rollout(z_SZ[first : first + BATCH], config.steps, noise=noise)))
        return torch.cat(parts)

    return torch.stack(list(ranks.each(range(config.noisy), draw))).nanmean(0).cpu().double().numpy()


def compute(
    simulator: Simulator[Any], targets: Sequence[Target], starts: Starts, config: TargetFunctionsConfig,
    spool: Spool | None = None,
) -> artefacts.Result:  # fmt: skip
    """Optimise every start for every target; arrays, the tables ``samples`` and ``targets``, and scalars.  spool: takes
    the frames, so that memory holds some of them (``Result.spooled``); it must be open until the result is saved.

    A target that says nothing in this simulator is left out: its row has no numbers and says why (``why_not``).
    UserError if all are.
    """
    samples, population, tries = config.samples, starts.population, tries_of(config)
    if len(starts.z_SZ) != samples * config.screen or len(population.z_NZ) != samples * tries:
        raise ValueError(f"{len(starts.z_SZ)} starts and {len(population.z_NZ)} controls for {samples} samples")
    result = artefacts.Result(spooled={} if spool is None else spool.arrays)
    work = samples * (tries + config.screen) + samples * config.restarts * config.iterations * len(targets)
    left_out: dict[str, str] = {}
    with bar("optimising", work, "rollouts") as progress:
        control_y = read_all(simulator, targets, population.z_NZ, config.steps, progress.advance)
        start_y = read_all(simulator, targets, starts.z_SZ, config.steps, progress.advance)
        left_out = {t.label: why for t, y in zip(targets, control_y, strict=True) if (why := why_not(y))}
        if len(left_out) == len(targets):
            raise UserError("; ".join(f"{t.name} {left_out[t.label]}" for t in targets))
        for k, target in enumerate(targets):
            if target.label in left_out:
                continue
            mine = starts.best(target.sign * start_y[k], config.screen)
            scale = float(np.nanstd(control_y[k]))
            found = optimise_all(
                simulator, target, mine, scale, config, lambda n: progress.advance(n * config.iterations)
            )
            result.arrays |= recorded(simulator, target, mine.z_SZ, config, "before", spool)
            result.arrays |= recorded(simulator, target, found.z_RZ, config, "after", spool)
            put(result, simulator, target, mine, found, control_y[k].reshape(samples, tries), scale, config)
    summarise(result, targets, left_out, config.seed)
    read = [t for t in targets if t.label not in left_out]
    result.notes |= {
        "targets": {t.label: {"name": t.name, "sign": t.sign, "unit": t.unit} for t in read},
        "left_out": left_out,
        "first_step": config.first_step,
        "tries": tries,
        "population": len(population.z_NZ),
        "field": simulator.world.spec.main_field,
    }
    return result


def why_not(y_N: np.ndarray) -> str:
    """Why a target cannot be optimised, from what the untrained latents of the population show; "": it can."""
    known = y_N[np.isfinite(y_N)]
    if len(known) < 2:
        return (
            f"can be read in {len(known)} of {len(y_N)} rollouts, the others end too early: try fewer --steps or "
            "another --first_step"
        )
    if not known.std() > SAME * np.abs(known).max():
        return "is the same for every latent: there is nothing to optimise"
    return ""


def tries_of(config: TargetFunctionsConfig) -> int:
    """Latents that are read on the way to one that is found."""
    return config.screen + config.restarts * (config.iterations + 1)


@torch.no_grad()
def recorded(
    simulator: Simulator[Any], target: Target, z_SZ: Tensor, config: TargetFunctionsConfig, when: str,
    spool: Spool | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Arrays of a target's modal rollouts ``before`` or ``after``: what they show, step by step; without the frames
    where a spool takes them."""
    parts: dict[str, list[np.ndarray]] = {}
    name = simulator.world.spec.main_field
    picture = name in simulator.world.spec.pictures
    for z in z_SZ.split(BATCH):
        out = simulator.rollout(z, config.steps)
        x = out.obs[name].cpu().numpy()
        shown = as_bytes(x) if picture else x
        if spool is None:
            parts.setdefault(name, []).append(shown)
        else:
            spool.add(f"{name}_{when}_{target.label}", shown)
        arrays = {"z": z, "action": out.action, "value": out.value, "alive": out.alive, "trace": target.trace(out)}
        for what, array in arrays.items():
            parts.setdefault(what, []).append(array.cpu().numpy())
    return {f"{what}_{when}_{target.label}": np.concatenate(of) for what, of in parts.items()}


def put(
    result: artefacts.Result,
    simulator: Simulator[Any],
    target: Target,
    starts: Starts,
    found: Found,
    control_ST: np.ndarray,
    scale: float,
    config: TargetFunctionsConfig,
) -> None:
    """One target's arrays and its rows of the table ``samples``."""
    label, a = target.label, result.arrays
    before, after = (
        read_all(simulator, [target], z, config.steps, lambda n: None)[0] for z in (starts.z_SZ, found.z_RZ)
    )
    lowest = np.where(np.isnan(control_ST), -np.inf, target.sign * control_ST).max(1)
    best = np.where(np.isfinite(lowest), target.sign * lowest, np.nan)
    noisy = np.full((2, len(before)), np.nan)
    if config.noisy:
        noisy = np.stack([read_noisy(simulator, target, z, config) for z in (starts.z_SZ, found.z_RZ)])
    a[f"y_{label}"] = found.y_IR.cpu().numpy()
    a[f"distance_{label}"] = found.distance_IR.cpu().numpy()
    a[f"control_{label}"] = control_ST
    further = [starts.population.nearer_share(z) for z in (starts.z_SZ, found.z_RZ)]
    distance = [starts.population.distance(z).cpu().numpy() for z in (starts.z_SZ, found.z_RZ)]
    for s in range(len(before)):
        numbers = {
            "before": before[s],
            "after": after[s],
            "control": best[s],
            "gain": target.sign * (after[s] - before[s]),
            "gain_sd": target.sign * (after[s] - before[s]) / scale,
            "over_control": target.sign * (after[s] - best[s]),
            "noisy_before": noisy[0, s],
            "noisy_after": noisy[1, s],
            "noisy_gain": target.sign * (noisy[1, s] - noisy[0, s]),
            "distance_before": distance[0][s],
            "distance_after": distance[1][s],
            "nearer_before": further[0][s],
            "nearer_after": further[1][s],
        }
        read = {"the rollout before": before[s], "the rollout after": after[s], "every untrained rollout": best[s]}
        unread = [which for which, y in read.items() if not np.isfinite(y)]
        result.tables.setdefault("samples", []).append(
            {
                "target": target.name,
                "sense": "up" if target.sign > 0 else "down",
                "sample": s,
                "independent": int(starts.unit_S[s]),
                "episode": int(starts.where_S2[s, 0]),
                "step": int(starts.where_S2[s, 1]),
                "unit": target.unit,
                **{k: artefacts.finite(v) for k, v in numbers.items()},
                "steps_before": int(a[f"alive_before_{label}"][s].sum()),
                "steps_after": int(a[f"alive_after_{label}"][s].sum()),
                "reason": f"too early an end to be read: {', '.join(unread)}" if unread else "",
            }
        )
