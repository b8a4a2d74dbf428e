"""Target functions: latents whose dreams show a thing.

``python -m analysis.target_functions --rollouts runs/demo/rollouts --maximise value_drop leftwards``

The latent z that a modal rollout starts from is moved by Adam along the gradient of a number of the whole
rollout, through agent and world, until the rollout shows a large drop of value, walking backwards, an
action, a neuron or a direction up or down (activation maximisation, Erhan et al. 2009, carried through time).

Unbounded, that finds adversarial latents.  So z is moved in the coordinates in which the population its
start came from (latents inferred from real frames, or the prior's) is round and of unit size, and pays for
being further out than that population.  Two controls go with every number: the best of as many untrained
latents of the population as were tried on the way, and what is left of the effect under the world's noise.

The straight-through gradients of categorical states and actions are those of probabilities, so a step need
not be uphill; the best rollout on the way is kept.  What is found is a property of the simulator, and a
hypothesis about the world.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.coupling import spread_over_episodes
from analysis.gradients import samples_that_fit
from analysis.quantities import Quantity, Reading, find_quantities, known_quantities
from analysis.saliency import bases_in
from analysis.saliency_figures import GAP, GOLD, LABEL, TILE, arrow
from core import artefacts, config as cli
from core.contracts import EnvSpec, Simulator, Trajectory, UserError
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore
from core.figures import BAND, INK, SIMULATED, figure_of, font_of, minus
from core.progress import bar
from core.stats import Estimate, benjamini_hochberg, bootstrap_mean, few, mean_p
from core.video import check_video, write_video
from generative.record_samples import informed_latents, noise_of, open_rollouts, random_latents
from generative.simulator import require_finite

STAGE = "target_functions"


@dataclass(frozen=True, kw_only=True)
class TargetFunctionsConfig:
    """Find latents whose simulated rollout shows a target: a value drop, walking backwards, a direction up or down."""

    simulator: Path = Path("bundles/coinrun-demo/simulator")
    """simulator run directory"""
    rollouts: Path | None = None
    """real rollouts of that world, from which starts and controls are inferred; none: random latents"""
    out: Path = Path("runs/target_functions")
    """run directory to write"""
    maximise: tuple[str, ...] = ()
    """targets to raise, one optimisation each: value_drop, value_rise (from --first_step to the end), reward
    (predicted, summed), terminal (log-probability of ending), or the mean over steps of any quantity of
    analysis.saliency (of rollouts that live through half of them): value, any action by its name, the game's words for
    several (CoinRun: leftwards, jumping_up ...), ica_ID, neurons_ID ..."""
    minimise: tuple[str, ...] = ()
    """targets to lower, of the same names"""
    hidden_states: Path | None = None
    """hidden_states run directory, for targets that are directions"""
    basis_kind: str = "ica"
    """the basis that direction_ID means: pca, ica, nmf, neurons"""
    samples: int = 16
    """latents to find for each target, each from a start of its own"""
    screen: int = 16
    """untrained latents read for every sample and target; the best is the start.  1: the start is not chosen"""
    restarts: int = 1
    """optimisations a start: the first from the start itself, the others from near it; the best is kept"""
    steps: int = 10
    """transitions of a rollout"""
    first_step: int = 1
    """the target is read from this step to the last; 0 is the first frame"""
    iterations: int = 50
    """steps of Adam"""
    learning_rate: float = 0.1
    """of Adam at the start, in standard deviations of the population; it falls linearly to 0"""
    prior_weight: float = 1.0
    """price of leaving the population: standard deviations of the target (over the population) for being one
    standard deviation further out than its mean, and four times that for two; 0: nothing is paid"""
    env_grads: bool = True
    """let the gradient pass straight through the agent's actions to their consequences; the world's categorical states
    are passed straight through either way"""
    noisy: int = 8
    """noisy rollouts a start, before and after, which say whether the effect outlives the world's noise"""
    drawn: int = 8
    """starts drawn a target: the first ones, whatever came of them"""
    video: bool = True
    """write an MP4 beside every PNG"""
    memory_gb: float = 1.0
    """what one forward pass may keep for its backward pass, in GB"""
    seed: int = 0
    """seed of starts and noise"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""


# Targets


@dataclass(frozen=True)
class Target:
    """A differentiable number of a whole rollout.

    ``trace``: a Trajectory -> what is shown of each step, [B, T+1].  ``total``: that and ``alive``
    [B, T+1] -> the target y_B, NaN where the rollout ended before it could be read; steps that do not exist
    count for nothing.  sign: 1 to raise it, -1 to lower it.
    """

    name: str
    sign: int
    unit: str
    trace: Callable[[Trajectory], Tensor]
    total: Callable[[Tensor, Tensor], Tensor]

    @property
    def label(self) -> str:
        return f"{self.name}_{'up' if self.sign > 0 else 'down'}"

    def read(self, out: Trajectory) -> Tensor:
        """y_B."""
        return self.total(self.trace(out), out.alive)


def mean_while_alive(y_BT: Tensor, alive_BT: Tensor) -> Tensor:
    """Mean [B] over the steps that exist; NaN where that is fewer than half of them, or a rollout that ends at once
    would be an easy way to any mean."""
    steps_B = alive_BT.sum(1)
    mean_B = torch.where(alive_BT, y_BT, 0).sum(1) / steps_B.clamp_min(1)
    return mean_B.masked_fill(2 * steps_B < alive_BT.shape[1], torch.nan)


def drop(value_BT: Tensor, alive_BT: Tensor, first: int) -> Tensor:
    """Value at ``first`` less that at the last step that exists; NaN where ``first`` does not."""
    last_B = alive_BT.sum(1) - 1
    after_B = value_BT.gather(1, last_B.clamp_min(first)[:, None])[:, 0]
    return (value_BT[:, first] - after_B).masked_fill(last_B < first, torch.nan)


def into(x_BT: Tensor, out: Trajectory) -> Tensor:
    """A row a transition -> a row a step, that of the transition which led to it, where there was one."""
    x = torch.where(out.alive[:, :-1], x_BT, 0)
    return torch.cat([torch.zeros_like(x[:, :1]), x], 1)


def log_of_ending(p_BT: Tensor) -> Tensor:
    """log(1 - prod(1 - p)) [B], with p kept off 0 and 1."""
    stays = torch.log1p(-p_BT.clamp(1e-12, 1 - 1e-6)).sum(1)
    return torch.log(-torch.expm1(stays))


def whole_rollout_targets(first: int) -> dict[str, tuple[str, Any, Any]]:
    """(unit, trace, total) of the targets that are no quantity of a single step."""
    since = max(first, 1)  # no transition leads to step 0
    return {
        "value_drop": ("return", lambda out: out.value, lambda y, alive: drop(y, alive, first)),
        "value_rise": ("return", lambda out: out.value, lambda y, alive: -drop(y, alive, first)),
        "reward": ("reward", lambda out: into(out.reward, out), lambda y, alive: y[:, since:].sum(1)),
        "terminal": ("nats", lambda out: into(out.terminal, out), lambda y, alive: log_of_ending(y[:, since:])),
    }


def per_step(quantity: Quantity, out: Trajectory) -> Tensor:
    """A quantity of analysis.saliency at every step, [B, T+1]."""
    before = torch.cat([out.value[:, :1], out.value[:, :-1]], 1)
    rows = (x.flatten(0, 1) for x in (out.h, out.logits, out.value, before, out.action))
    return quantity.read(Reading(*rows)).unflatten(0, out.value.shape)


def mean_target(quantity: Quantity, sign: int, first: int) -> Target:
    """The mean of a quantity over the steps from ``first``."""
    return Target(
        quantity.name,
        sign,
        quantity.unit,
        lambda out: per_step(quantity, out),
        lambda y, alive: mean_while_alive(y[:, first:], alive[:, first:]),
    )


def find_targets(
    maximise: Sequence[str],
    minimise: Sequence[str],
    first: int,
    spec: EnvSpec,
    basis_of: Callable[[str], Basis],
    basis_kind: str = "ica",
) -> list[Target]:
    """Targets by name, those to raise first.

    Raises UserError where none is named, one is named twice, a name is not known in this world, a direction
    does not exist or a quantity means nothing at step ``first``.
    """
    own, known = whole_rollout_targets(first), known_quantities(spec)
    out: list[Target] = []
    for flag, sign, names in (("--maximise", 1, maximise), ("--minimise", -1, minimise)):
        for name in names:
            if name in own:
                out.append(Target(name, sign, *own[name]))
                continue
            if name not in {*known, *spec.action_names} and not re.fullmatch(r"[a-z]+_\d+", name):
                everything = [*own, *known]
                raise UserError(
                    f"{flag}: no target {name!r}{cli.nearest(name, everything)}; this world has: "
                    f"{', '.join(everything)}, and direction_ID, ica_ID, neurons_ID ... with --hidden_states"
                )
            (quantity,) = find_quantities([name], spec, basis_of, basis_kind)
            if first < quantity.first_step:
                raise UserError(f"{flag} {name} needs --first_step {quantity.first_step} or later")
            out.append(mean_target(quantity, sign, first))
    labels = [target.label for target in out]
    if not out:
        raise UserError("name a target to --maximise or to --minimise, such as --maximise value_drop")
    if len(set(labels)) < len(labels):
        raise UserError(f"{next(x for x in labels if labels.count(x) > 1)!r} is named twice")
    return out


# The population that a start comes from


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
    unit_S: np.ndarray  # the independent episode of each start
    population: Population

    def best(self, y_S: np.ndarray, screen: int) -> Starts:
        """Of every ``screen`` neighbours the one with the largest y; NaN is never chosen where a number is."""
        y = np.where(np.isnan(y_S), -np.inf, y_S).reshape(-1, screen)
        rows = np.arange(len(y)) * screen + y.argmax(1)
        return Starts(self.z_SZ[rows], self.where_S2[rows], self.unit_S[rows], self.population)


def random_starts(simulator: Simulator, samples: int, controls: int, seed: int, device: torch.device) -> Starts:
    """From the prior."""
    z = random_latents(simulator, samples + controls, torch.Generator(device).manual_seed(seed))
    return Starts(z[:samples], np.full((samples, 2), -1), np.arange(samples), Population.of(z[samples:]))


def informed_starts(
    simulator: Simulator, store: RolloutStore, samples: int, controls: int, seed: int, device: torch.device
) -> Starts:
    """Latents drawn from what real windows tell (mean and spread, as in training): the starts from as many episodes
    as there are, the controls from the other windows (some more than once, where there are too few)."""
    rng = np.random.default_rng(seed)
    windows = store.window_starts(simulator.initial_frames)
    rows = np.arange(len(windows))
    if len(rows) < samples:
        raise UserError(f"{store.path} has {len(rows)} windows to start from, --samples x --screen asks for {samples}")
    chosen = spread_over_episodes(rows, windows[:, 0], samples, rng)
    others = np.setdiff1d(rows, chosen) if len(rows) > samples else rows
    controls_at = rng.choice(others, controls, replace=len(others) < controls)
    draws = torch.Generator(device).manual_seed(seed)
    z, population = (informed_latents(simulator, store, windows[at], device, draws) for at in (chosen, controls_at))
    return Starts(z, windows[chosen], windows[chosen, 0], Population.of(population))


# Optimisation

# Beside a gradient of length 1.  Adam's own, 1e-8, moves coordinates that hardly matter, and those whose gradient is a
# rounding error, as far as those that do.
ADAM_EPS = 0.1
SAME = 1e-6  # spread of a target over latents, of its size, up to which it is rounding error
RESTART_DISTANCE = 0.5  # of a restart from its start, in standard deviations of the population


class Found(NamedTuple):
    """What an optimisation came to; R rows, I iterations."""

    z_RZ: Tensor  # the best on the way
    objective_R: Tensor
    y_IR: Tensor  # [I+1, R], the target before each step of Adam and after the last
    distance_IR: Tensor


def optimise(
    simulator: Simulator, target: Target, z_RZ: Tensor, population: Population, scale: float, config: Any
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
        z = simulator.normalise(population.outwards(u))
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
    simulator: Simulator, target: Target, starts: Starts, scale: float, config: TargetFunctionsConfig, tick: Any
) -> Found:
    """``optimise`` from every start and its restarts, in chunks that fit into memory; the best of each start's."""
    s, r = len(starts.z_SZ), config.restarts
    generator = torch.Generator().manual_seed(config.seed)
    jitter = torch.randn(r, s, starts.z_SZ.shape[1], generator=generator).to(starts.z_SZ)
    jitter[0] = 0
    u = starts.population.inwards(starts.z_SZ) + RESTART_DISTANCE * jitter
    z = simulator.normalise(starts.population.outwards(u.flatten(0, 1)))
    size = samples_that_fit(simulator, z, config.steps + 1, 1, config.memory_gb * 1e9)
    parts = []
    for i in range(0, len(z), size):
        parts.append(optimise(simulator, target, z[i : i + size], starts.population, scale, config))
        tick(len(parts[-1].z_RZ))
    whole = Found(
        torch.cat([p.z_RZ for p in parts]),
        torch.cat([p.objective_R for p in parts]),
        torch.cat([p.y_IR for p in parts], 1),
        torch.cat([p.distance_IR for p in parts], 1),
    )
    rows = torch.arange(s, device=z.device) + s * whole.objective_R.view(r, s).argmax(0)
    return Found(whole.z_RZ[rows], whole.objective_R[rows], whole.y_IR[:, rows], whole.distance_IR[:, rows])


# The whole of it


@torch.no_grad()
def read_all(simulator: Simulator, targets: Sequence[Target], z_NZ: Tensor, steps: int, tick: Any) -> np.ndarray:
    """y [targets, N] of modal rollouts from many latents, 64 at a time; NaN where a rollout ends before it can be
    read.  UserError where the simulator makes no numbers."""
    parts = []
    for i in range(0, len(z_NZ), 64):
        out = simulator.rollout(z_NZ[i : i + 64], steps)
        require_finite(out)
        parts.append(torch.stack([target.read(out) for target in targets]))
        tick(len(out.value))
    return torch.cat(parts, 1).cpu().double().numpy()


@torch.no_grad()
def read_noisy(simulator: Simulator, target: Target, z_SZ: Tensor, config: TargetFunctionsConfig) -> np.ndarray:
    """Mean y [S] of ``noisy`` stochastic rollouts; draw n of start s has the same noise for every z_SZ."""
    s, ids, draws = len(z_SZ), np.arange(config.noisy * len(z_SZ)), []
    for n in range(config.noisy):
        noise = noise_of(simulator, config.seed, ids[n * s : (n + 1) * s].tolist(), config.steps, z_SZ.device)
        draws.append(target.read(simulator.rollout(z_SZ, config.steps, noise=noise)))
    return torch.stack(draws).nanmean(0).cpu().double().numpy()


def compute(
    simulator: Simulator, targets: Sequence[Target], starts: Starts, config: TargetFunctionsConfig
) -> artefacts.Result:
    """Optimise every start for every target; arrays, the tables ``samples`` and ``targets``, and scalars.

    A target that says nothing in this simulator is left out: its row has no numbers and says why (``why_not``).
    UserError if all are.
    """
    samples, population, tries = config.samples, starts.population, tries_of(config)
    if len(starts.z_SZ) != samples * config.screen or len(population.z_NZ) != samples * tries:
        raise ValueError(f"{len(starts.z_SZ)} starts and {len(population.z_NZ)} controls for {samples} samples")
    result = artefacts.Result()
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
            result.arrays |= recorded(simulator, target, mine.z_SZ, config, "before")
            result.arrays |= recorded(simulator, target, found.z_RZ, config, "after")
            put(result, simulator, target, mine, found, control_y[k].reshape(samples, tries), scale, config)
    summarise(result, targets, left_out, config.seed)
    read = [t for t in targets if t.label not in left_out]
    result.notes |= {
        "targets": {t.label: {"name": t.name, "sign": t.sign, "unit": t.unit} for t in read},
        "left_out": left_out,
        "first_step": config.first_step,
        "tries": tries,
        "population": len(population.z_NZ),
        "field": next(iter(simulator.spec.obs)),
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
    simulator: Simulator, target: Target, z_SZ: Tensor, config: TargetFunctionsConfig, when: str
) -> dict[str, np.ndarray]:
    """Arrays of a target's modal rollouts ``before`` or ``after``: what they show, step by step."""
    out = simulator.rollout(z_SZ, config.steps)
    (name,) = out.obs
    x = out.obs[name].cpu().numpy()
    picture = x.ndim == 5 and x.shape[-1] == 3
    arrays = {"z": z_SZ, "action": out.action, "value": out.value, "alive": out.alive, "trace": target.trace(out)}
    return {
        f"{name}_{when}_{target.label}": (x * 255).round().clip(0, 255).astype(np.uint8) if picture else x,
        **{f"{what}_{when}_{target.label}": array.cpu().numpy() for what, array in arrays.items()},
    }


def put(
    result: artefacts.Result,
    simulator: Simulator,
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


MEANS = {
    "before": "{unit}",
    "after": "{unit}",
    "control": "{unit}, best of as many untrained latents as were tried",
    "gain": "{unit}, in the sense asked for",
    "gain_sd": "standard deviations of the target over the population",
    "over_control": "{unit}, in the sense asked for",
    "noisy_gain": "{unit}, under noise",
    "nearer_before": "% of the population nearer to its centre",
    "nearer_after": "% of the population nearer to its centre",
}


def summarise(result: artefacts.Result, targets: Sequence[Target], left_out: Mapping[str, str], seed: int) -> None:
    """The table ``targets`` (a row a target; p and q of the gain over the control) and scalars; means over the starts
    where they are known, whole episodes resampled.  ``reason``: why a number is not there."""
    rows: list[dict[str, Any]] = []
    for target in targets:
        sense = "up" if target.sign > 0 else "down"
        every = result.tables.get("samples", [])
        mine = [r for r in every if (r["target"], r["sense"]) == (target.name, sense)]
        unit_S = np.array([r["independent"] for r in mine])
        row: dict[str, Any] = {"target": target.name, "sense": sense, "unit": target.unit}
        for name, unit in MEANS.items():
            e = mean_of(np.array([r[name] for r in mine], np.float64), unit_S, seed)
            result.scalar(f"{name}_{target.label}", e.value, unit.format(unit=target.unit), e.n, e.interval)
            ends = {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}
            row |= {k: artefacts.finite(v) for k, v in ends.items()}
        over = np.array([r["over_control"] for r in mine], np.float64)
        known = np.isfinite(over)
        each = [over[known & (unit_S == u)].mean() for u in np.unique(unit_S[known])]
        unread = sum(bool(r["reason"]) for r in mine)
        reason = f"{unread} of {len(mine)} starts end too early to be read or compared" if unread else ""
        p = mean_p(np.array(each), rng=np.random.default_rng(seed))
        rows.append(row | {"n": len(each), "p": p, "reason": left_out.get(target.label, reason)})
    for row, q in zip(rows, benjamini_hochberg(np.array([row["p"] for row in rows])), strict=True):
        row |= {"p": artefacts.finite(row["p"]), "q": artefacts.finite(q)}
    result.tables["targets"] = rows


def mean_of(values_S: np.ndarray, unit_S: np.ndarray, seed: int) -> Estimate:
    """Mean over the starts where it is known."""
    known = np.isfinite(values_S)
    return bootstrap_mean(values_S[known], unit_S[known], rng=np.random.default_rng(seed))


# Pictures

ENDED = (225, 225, 225)


class Shown(NamedTuple):
    """A rollout as it is drawn."""

    frames: np.ndarray  # uint8 [T+1, 64, 64, 3]
    actions: list[str]
    value: np.ndarray
    trace: np.ndarray
    alive: np.ndarray


def shown_of(result: artefacts.Result, s: int, label: str, when: str, names: Sequence[str]) -> Shown:
    """Start ``s`` of a target, ``before`` or ``after``."""
    a, key = result.arrays, f"{when}_{label}"
    frames, alive = a[f"{result.notes['field']}_{key}"][s].copy(), a[f"alive_{key}"][s]
    frames[~alive] = ENDED
    actions = [names[i] for i in a[f"action_{key}"][s]]
    return Shown(frames, actions, a[f"value_{key}"][s], a[f"trace_{key}"][s], alive)


def title_of(result: artefacts.Result, s: int, label: str) -> str:
    about = result.notes["targets"][label]
    sense = "up" if about["sign"] > 0 else "down"
    row = next(
        r for r in result.tables["samples"] if (r["target"], r["sense"], r["sample"]) == (about["name"], sense, s)
    )
    return (
        f"start {s}, {about['name']} {sense}: {said(row['before'])} -> {said(row['after'])} {about['unit']} "
        f"(best of {result.notes['tries']} untrained: {said(row['control'])})"
    )


def said(value: float | None, spec: str = ".3g") -> str:
    """A number of a row in words."""
    return "not known" if value is None else f"{value:{spec}}"


def draw_strip(result: artefacts.Result, s: int, label: str, names: Sequence[str]) -> Any:
    """A PIL image: the rollout before and, below it, after; actions, frames, the target's reading and the value."""
    from PIL import Image, ImageDraw

    font, small = font_of(13), font_of(10)
    name, first = result.notes["targets"][label]["name"], result.notes["first_step"]
    rollouts = {when: shown_of(result, s, label, when, names) for when in ("before", "after")}
    columns, top, arrows, words = len(rollouts["before"].frames), 28, 30, 40
    block = arrows + TILE + words
    image = Image.new("RGB", (LABEL + columns * (TILE + GAP), top + 2 * block), "white")
    pen = ImageDraw.Draw(image)
    pen.text((6, 6), minus(title_of(result, s, label)), fill="black", font=font)
    for row, (when, x) in enumerate(rollouts.items()):
        y = top + row * block
        pen.text((6, y + arrows + TILE // 2), when, fill="black", font=font)
        left = LABEL + first * (TILE + GAP)
        pen.line((left, y + arrows - 3, image.width - GAP, y + arrows - 3), fill=GOLD, width=3)
        for t in range(columns):
            left, middle = LABEL + t * (TILE + GAP), LABEL + t * (TILE + GAP) + TILE / 2
            tile = Image.fromarray(x.frames[t]).resize((TILE, TILE), Image.Resampling.NEAREST)
            image.paste(tile, (left, y + arrows))
            if x.alive[t]:
                arrow(pen, middle, y + arrows / 2 - 2, x.actions[t], 10, small)
            said = minus(f"step {t}, value {x.value[t]:.2f}") if x.alive[t] else f"step {t}, ended"
            pen.text((middle, y + arrows + TILE + 10), said, fill="black", anchor="mm", font=small)
            if x.alive[t] and name not in VALUES:
                said = minus(f"{name} {x.trace[t]:.3g}")
                pen.text((middle, y + arrows + TILE + 25), said, fill="black", anchor="mm", font=small)
    return image


VALUES = ("value", "value_drop", "value_rise")  # whose reading is the value, which is written anyway


def video_frames(result: artefacts.Result, s: int, label: str, names: Sequence[str]) -> list[np.ndarray]:
    """uint8 [320, 512, 3] a step: before, and beside it after."""
    from PIL import Image, ImageDraw

    font, side = font_of(13), 256
    rollouts = {when: shown_of(result, s, label, when, names) for when in ("before", "after")}
    about = result.notes["targets"][label]
    out = []
    for t in range(len(rollouts["before"].frames)):
        image = Image.new("RGB", (2 * side, side + 64), "white")
        pen = ImageDraw.Draw(image)
        pen.text((6, 4), f"start {s}: {about['name']} {'up' if about['sign'] > 0 else 'down'}, t={t}", "black", font)
        for column, (when, x) in enumerate(rollouts.items()):
            left = column * side
            said = f"{when}, value {x.value[t]:.2f}" if x.alive[t] else f"{when}, ended"
            if x.alive[t] and about["name"] not in VALUES:
                said += f"  {x.trace[t]:.3g}"
            pen.text((left + 6, 32), minus(said), fill="black", font=font)
            if x.alive[t]:
                arrow(pen, left + side - 40, 44, x.actions[t], 9, font)
            tile = Image.fromarray(x.frames[t]).resize((side, side), Image.Resampling.NEAREST)
            image.paste(tile, (left, 64))
        out.append(np.asarray(image))
    return out


def draw_courses(result: artefacts.Result) -> Any:
    """A matplotlib Figure, a panel a target: every start's course, their mean, and what the untrained latents give."""
    a, labels = result.arrays, list(result.notes["targets"])
    columns = min(3, len(labels))
    rows = -(-len(labels) // columns)
    figure = figure_of(4.6 * columns, 3.4 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, label in zip(axes, labels, strict=False):
        about = result.notes["targets"][label]
        y, sign = a[f"y_{label}"], about["sign"]
        axis.plot(y, color=SIMULATED, alpha=0.3, linewidth=0.8)
        known = np.isfinite(y)
        mean = np.where(known, y, 0).sum(1) / np.where(known.any(1), known.sum(1), np.nan)
        axis.plot(mean, color=SIMULATED, linewidth=2, label=f"mean of {y.shape[1]} starts")
        control = a[f"control_{label}"]
        low, high = np.nanquantile(control, (0.05, 0.95))
        axis.axhspan(low, high, color=BAND, linewidth=0, label="90 % of untrained latents")
        best = result.scalars[f"control_{label}"]["value"]
        if best is not None:
            axis.axhline(best, color=INK, linestyle="--", linewidth=1, label=f"best of {result.notes['tries']} of them")
        axis.set(
            title=f"{about['name'].replace('_', ' ')}, {'up' if sign > 0 else 'down'}",
            xlabel="step of the search",
            ylabel=about["unit"],
        )
    axes[0].legend(fontsize=7)
    for axis in axes[len(labels) :]:
        axis.axis("off")
    return figure


def draw(result: artefacts.Result, path: Path, names: Sequence[str], drawn: int, video: bool) -> None:
    """``targets.png``; a PNG strip (and an MP4) a target and start, for worlds whose observation is a picture."""
    draw_courses(result).savefig(path / "targets.png", dpi=110)
    frames = result.arrays[f"{result.notes['field']}_before_{next(iter(result.notes['targets']))}"]
    if frames.dtype != np.uint8 or frames.ndim != 5:
        result.notes["figures"] = "no strips: the observation of this world is no picture"
        return
    jobs = [(label, s) for label in result.notes["targets"] for s in range(min(drawn, len(frames)))]
    with bar("drawing", len(jobs), "strips") as progress:
        for label, s in jobs:
            draw_strip(result, s, label, names).save(path / f"{label}_{s}.png")
            if video:
                write_video(path / f"{label}_{s}.mp4", video_frames(result, s, label, names))
            progress.advance()


# The stage


def check(config: TargetFunctionsConfig) -> None:
    """UserError for numbers that make no sense."""
    cli.require(1, steps=config.steps, iterations=config.iterations, restarts=config.restarts, screen=config.screen,
                threads=config.threads)  # fmt: skip
    cli.require(2, samples=config.samples)
    cli.require(0, noisy=config.noisy, drawn=config.drawn, seed=config.seed, prior_weight=config.prior_weight)
    if not config.learning_rate > 0:
        raise UserError(f"--learning_rate must be above 0, not {config.learning_rate}")
    if not 0 <= config.first_step <= config.steps:
        raise UserError(f"--first_step {config.first_step} is not between 0 and --steps {config.steps}")
    if config.video and config.drawn:
        check_video()


def main(config: TargetFunctionsConfig) -> None:
    from generative.simulator import load_simulator

    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config)
    simulator = load_simulator(config.simulator, device)
    agent, names = fingerprint(simulator.agent), simulator.spec.action_names
    targets = find_targets(
        config.maximise, config.minimise, config.first_step, simulator.spec,
        bases_in(config.hidden_states, agent, device), config.basis_kind,
    )  # fmt: skip
    count, controls = config.samples * config.screen, config.samples * tries_of(config)
    inputs = {"simulator": config.simulator}
    if config.hidden_states is not None:
        inputs["hidden_states"] = config.hidden_states
    if config.rollouts is None:
        starts = random_starts(simulator, count, controls, config.seed, device)
    else:
        inputs["rollouts"] = config.rollouts
        with open_rollouts(config.rollouts, simulator) as store:
            starts = informed_starts(simulator, store, count, controls, config.seed, device)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.facts = {"agent": agent, "simulator": fingerprint(simulator)}
        result = compute(simulator, targets, starts, config)
        draw(result, run.path, names, config.drawn, config.video)
        result.save(run.path)
        run.metrics |= result.scalars
    print(f"{len(result.notes['targets'])} targets, {config.samples} latents each: {config.out}")
    for row in result.tables["targets"]:
        print(f"  {row['target']} {row['sense']}: {in_words(row, result.notes['tries'])}")


def in_words(row: Mapping[str, Any], tries: int) -> str:
    """What a row of the table ``targets`` says."""
    if not row["n"]:
        return str(row["reason"])
    ends = said(row["over_control_low"]), said(row["over_control_high"])
    best = f"best of {tries} untrained {said(row['control'])}"
    return (
        f"{said(row['before'])} -> {said(row['after'])} {row['unit']}, {best} "
        f"(gain over it {said(row['over_control'])} [{', '.join(ends)}], n {row['n']}{few(row['n'])}, "
        f"q {said(row['q'], '.2g')}); "
        f"{said(row['nearer_after'], '.0f')} % of the population are nearer to its centre"
        + (f"; {row['reason']}" if row["reason"] else "")
    )


if __name__ == "__main__":
    cli.run(TargetFunctionsConfig, main, STAGE)
