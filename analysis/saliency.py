"""Saliency: what in the frames, in the agent's memory and in the world made a quantity what it is.

``python -m analysis.saliency --samples runs/demo/samples --sample_ids 0 to 8 --quantities action value``

A simulated rollout is run again from its latent, without noise, and the gradient of a quantity at a
target step is taken with respect to every frame, every hidden state h_t and every world state d_t,
averaged over slightly noised copies of the latent (SmoothGrad, Smilkov et al. 2017,
arXiv:1706.03825).  It is taken twice: through agent and world, and with the path action -> world
cut; the difference is what runs through the consequences of the agent's own actions.  Integrated
gradients (captum's) explain the target frame alone, and a randomised agent shows how much of a
picture any network would have given (Adebayo et al. 2018, arXiv:1810.03292).

The straight-through gradients of categorical states and actions are those of probabilities, not of
the discrete choice: a saliency through them is a hypothesis, which validation.interventions tests.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core import artefacts, config as cli
from core.contracts import Agent, SimState, Simulator, StepOut, UserError
from core.directions import Basis, fingerprint, load_basis
from core.episodes import RolloutStore
from core.interventions import parse_ids
from core.progress import track
from core.stats import bootstrap_mean
from core.video import check_video, write_video

STAGE = "saliency"


@dataclass(frozen=True, kw_only=True)
class SaliencyConfig:
    """Gradients of quantities at a target step with respect to frames, hidden states and world states."""

    simulator: Path = Path("bundles/coinrun-demo/simulator")
    """simulator run directory"""
    samples: Path = Path("runs/demo/samples")
    """simulated rollouts of that simulator (generative.record_samples)"""
    out: Path = Path("runs/saliency")
    """run directory to write"""
    sample_ids: tuple[str, ...] = ("0", "to", "8")
    """which episodes of --samples: ids, as in 33 39 56 84, and ranges A to B, which end before B as in Python
    (0 to 8 is 0, 1 ... 7)"""
    combine_samples_not_iterate: bool = False
    """explain one rollout from the mean of the samples' latents instead of each sample"""
    quantities: tuple[str, ...] = ("action", "value")
    """what to explain: value, value_delta (change since the step before), action (log-probability of the chosen
    one), leftwards, rightwards, jumping_up, jumping_left, jumping_right, any action by its name, direction_ID (of
    --basis_kind) or ica_ID, pca_ID ... (with --hidden_states)"""
    hidden_states: Path | None = None
    """hidden_states run directory, for quantities that are directions"""
    basis_kind: str = "ica"
    """the basis that direction_ID means: pca, ica, nmf, neurons"""
    steps: int = 10
    """transitions of the rollout that is shown"""
    target_step: int = 4
    """step at which the quantity is read; 0 is the first frame"""
    copies: int = 9
    """noised copies of the latent that a gradient is averaged over"""
    noise: float = 1.25e-4
    """standard deviation of that noise, in units of the latent"""
    integrated_steps: int = 32
    """points on the path of integrated gradients; 0 leaves them out"""
    baseline: Literal["black", "mean"] = "black"
    """where that path begins: a black frame, or the mean frame of the rollout"""
    batch_size: int = 0
    """samples a forward pass; 0: as many as --memory_gb holds"""
    memory_gb: float = 1.0
    """what one forward pass may keep for its backward passes, in GB"""
    video: bool = True
    """write an MP4 beside every PNG"""
    seed: int = 0
    """seed of the noise and of the randomised agent"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""


# Quantities


class Reading(NamedTuple):
    """What the agent says at the target step."""

    h_BH: Tensor
    logits_BA: Tensor
    value_B: Tensor
    value_before_B: Tensor  # at the step before; at step 0 the same as value
    chosen_B: Tensor  # int64, the action that the rollout without noise chose


@dataclass(frozen=True)
class Quantity:
    """A differentiable number of a reading: ``read(reading) -> y_B``."""

    name: str
    unit: str
    read: Callable[[Reading], Tensor]
    first_step: int = 0  # the earliest step at which it means something


ACTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "leftwards": ("left", "downleft", "upleft"),
    "rightwards": ("right", "downright", "upright"),
    "jumping_up": ("up",),
    "jumping_left": ("upleft",),
    "jumping_right": ("upright",),
}


def log_probability(logits_BA: Tensor, actions: Sequence[int]) -> Tensor:
    """Log-probability [B] in nats that the action is one of ``actions``."""
    return logits_BA[:, list(actions)].logsumexp(-1) - logits_BA.logsumexp(-1)


def _chosen(r: Reading) -> Tensor:
    return r.logits_BA.gather(-1, r.chosen_B[:, None])[:, 0] - r.logits_BA.logsumexp(-1)


def _of_actions(name: str, actions: Sequence[int]) -> Quantity:
    return Quantity(name, "nats", lambda r: log_probability(r.logits_BA, actions))


def _of_direction(name: str, basis: Basis, i: int) -> Quantity:
    return Quantity(name, "coordinate", lambda r: basis.project(r.h_BH)[:, i])


def known_quantities(action_names: Sequence[str]) -> dict[str, Quantity]:
    """Every quantity of a world with these actions, but the directions."""
    out = {
        "value": Quantity("value", "return", lambda r: r.value_B),
        "value_delta": Quantity("value_delta", "return", lambda r: r.value_B - r.value_before_B, first_step=1),
        "action": Quantity("action", "nats", _chosen),
    }
    for name, members in ACTION_GROUPS.items():
        actions = [action_names.index(m) for m in members if m in action_names]
        if actions:
            out[name] = _of_actions(name, actions)
    for i, name in enumerate(action_names):
        out.setdefault(name, _of_actions(name, [i]))
    return out


def find_quantities(
    names: Sequence[str], action_names: Sequence[str], basis_of: Callable[[str], Basis], basis_kind: str = "ica"
) -> list[Quantity]:
    """Quantities by name.  basis_of: kind of basis -> basis, or a UserError.

    Raises UserError for a name that this world does not have (and lists those it has), a direction
    that does not exist, and a name given twice.
    """
    known = known_quantities(action_names)
    out: list[Quantity] = []
    for name in names:
        direction = re.fullmatch(r"([a-z]+)_(\d+)", name)
        if name in known:
            out.append(known[name])
        elif direction:
            kind = basis_kind if direction[1] == "direction" else direction[1]
            basis, i = basis_of(kind), int(direction[2])
            basis.check([i])
            out.append(_of_direction(name, basis, i))
        else:
            raise UserError(
                f"no quantity {name!r}{cli.nearest(name, known)}; this world has: {', '.join(known)}, "
                "and direction_ID, ica_ID, pca_ID ... with --hidden_states"
            )
    if not out:
        raise UserError("--quantities is empty; name at least one, such as value")
    if len(set(names)) < len(names):
        raise UserError(f"--quantities names {next(n for n in names if list(names).count(n) > 1)!r} twice")
    return out


def parse_sample_ids(words: Sequence[str], available: int) -> list[int]:
    """``33 39 56`` and ``A to B`` (without B) -> ids in the order given.

    Raises UserError: not a number, a range that is empty or lacks an end, an id that is not among
    ``available`` samples, an id given twice.
    """
    words = list(words)
    ids: list[int] = []
    at = 0
    while at < len(words):
        if words[at + 1 : at + 2] == ["to"]:
            ends = parse_ids([words[at], *words[at + 2 : at + 3]], "--sample_ids")
            if len(ends) < 2 or ends[1] <= ends[0]:
                raise UserError(f"--sample_ids {' '.join(words)}: A to B needs A < B; B itself is left out")
            ids += range(*ends)
            at += 3
        else:
            ids += parse_ids([words[at]], "--sample_ids")
            at += 1
    if not ids:
        raise UserError("--sample_ids is empty; give ids, or a range such as 0 to 8")
    for i in ids:
        if not 0 <= i < available:
            raise UserError(f"--sample_ids: no sample {i}; there are {available} (0 to {available - 1})")
    if len(set(ids)) < len(ids):
        raise UserError(f"--sample_ids names sample {next(i for i in ids if ids.count(i) > 1)} twice")
    return ids


# Rollouts whose every step stays open to gradients


def unroll(
    simulator: Simulator, state: SimState, steps: int, env_grads: bool = True
) -> tuple[list[SimState], list[StepOut]]:
    """``steps`` modal steps from ``state``: the state before each and after the last, and what came out.

    The frames, h and d of a StepOut are the very tensors that the rest of the rollout was computed
    from, so that torch.autograd.grad can be asked for them.
    """
    states, outs = [state], []
    for _ in range(steps):
        state, out = simulator.step(state, env_grads=env_grads)
        states.append(state)
        outs.append(out)
    return states, outs


def reading_at(outs: Sequence[StepOut], target: int, chosen_B: Tensor) -> Reading:
    """The reading of step ``target``; chosen: the action whose probability ``action`` means."""
    now, before = outs[target], outs[max(0, target - 1)]
    return Reading(now.h_BH, now.logits_BA, now.value_B, before.value_B, chosen_B)


def saved_bytes(forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """Bytes that autograd keeps for the backward pass of ``forward()``, without the parameters."""
    seen: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        kept = forward()
    for p in parameters:
        seen.pop(p.untyped_storage().data_ptr(), None)
    del kept
    return sum(seen.values())


def samples_that_fit(simulator: Simulator, z_1Z: Tensor, steps: int, copies: int, memory_bytes: float) -> int:
    """How many samples (of ``copies`` rows each) one forward pass of ``steps`` steps may hold, at least 1."""
    parameters = simulator.parameters() if isinstance(simulator, torch.nn.Module) else ()
    z = z_1Z[:1].detach().requires_grad_()
    row = saved_bytes(lambda: unroll(simulator, simulator.start(z), steps), parameters)
    return max(1, int(memory_bytes // max(1, row * copies)))


# Gradients


class Gradients(NamedTuple):
    """Gradients of one quantity, a row a sample, averaged over its copies; zero after the target step."""

    y: Tensor  # [S], the quantity
    obs: dict[str, Tensor]  # [S, T+1, ...], per unit of the observation
    h: Tensor  # [S, T+1, H]
    d: Tensor  # [S, T+1, D]


def gradients(
    simulator: Simulator,
    z_BZ: Tensor,
    chosen_B: Tensor,
    quantities: Sequence[Quantity],
    target: int,
    *,
    steps: int,
    copies: int = 1,
    env_grads: bool = True,
) -> list[Gradients]:
    """Gradients of every quantity at step ``target`` of modal rollouts, from one forward pass.

    z [S * copies, Z]: the copies of a sample beside each other.  steps: transitions T of the result.
    """
    z = z_BZ.detach().requires_grad_()
    _, outs = unroll(simulator, simulator.start(z), target + 1, env_grads)
    reading = reading_at(outs, target, chosen_B)
    fields = list(outs[0].obs)
    groups = [[out.obs[name] for out in outs] for name in fields]
    groups += [[out.h_BH for out in outs], [out.d_BD for out in outs]]
    flat = [x for group in groups for x in group]
    results = []
    for n, quantity in enumerate(quantities):
        y_B = quantity.read(reading)
        # Rows do not touch each other: the gradient of the sum holds each row's own.
        grads = torch.autograd.grad(y_B.sum(), flat, retain_graph=n + 1 < len(quantities))
        per = len(outs)
        series = [_series(grads[g * per : (g + 1) * per], steps, copies) for g in range(len(groups))]
        y_S = y_B.detach().unflatten(0, (-1, copies)).mean(1)
        results.append(Gradients(y_S, dict(zip(fields, series, strict=False)), series[-2], series[-1]))
    return results


def _series(grads: Sequence[Tensor], steps: int, copies: int) -> Tensor:
    """Gradients of steps 0..target, each [S * copies, ...] -> [S, steps+1, ...], mean over copies."""
    mean = [g.unflatten(0, (-1, copies)).mean(1) for g in grads]
    mean += [torch.zeros_like(mean[0])] * (steps + 1 - len(mean))
    return torch.stack(mean, 1)


def agent_gradients(
    agent: Agent, obs_BT: Mapping[str, Tensor], h_first_BH: Tensor, chosen_B: Tensor, quantity: Quantity
) -> dict[str, Tensor]:
    """Gradient with respect to given frames [B, T, ...], read by the agent alone, of a quantity at the last.

    On the frames of a rollout this is ``gradients(..., env_grads=False)``.  h_first: the state before
    the first frame.
    """
    obs = {name: x.detach().clone().requires_grad_() for name, x in obs_BT.items()}
    h, goes_on = h_first_BH.detach(), torch.zeros(len(h_first_BH), dtype=torch.bool, device=h_first_BH.device)
    values: list[Tensor] = []
    for t in range(next(iter(obs.values())).shape[1]):
        h = agent.advance(agent.encode({name: x[:, t] for name, x in obs.items()}), h, goes_on)
        logits, value = agent.heads(h)
        values.append(value)
    y = quantity.read(Reading(h, logits, values[-1], values[max(0, len(values) - 2)], chosen_B))
    return dict(zip(obs, torch.autograd.grad(y.sum(), list(obs.values())), strict=True))


def integrated_gradients(
    agent: Agent,
    obs: Mapping[str, Tensor],
    baseline: Mapping[str, Tensor],
    h_before_BH: Tensor,
    value_before_B: Tensor,
    chosen_B: Tensor,
    quantity: Quantity,
    steps: int,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Captum's integrated gradients (Sundararajan et al. 2017, arXiv:1703.01365) of one frame.

    obs, baseline: fields [B, ...] of the target step; h_before: the state before it, held fixed, as is
    value_before.  Returns attributions [B, ...], y(obs) - y(baseline) [B], and the completeness delta
    [B]: how much the attributions' sum misses that difference.
    """
    from captum.attr import IntegratedGradients

    names = list(obs)

    def read(*args: Tensor) -> Tensor:
        *fields, h, value_before, chosen = args
        goes_on = torch.zeros(len(h), dtype=torch.bool, device=h.device)
        after = agent.advance(agent.encode(dict(zip(names, fields, strict=True))), h, goes_on)
        logits, value = agent.heads(after)
        return quantity.read(Reading(after, logits, value, value_before, chosen))

    inputs = tuple(obs[n].detach() for n in names)
    base = tuple(baseline[n].detach() for n in names)
    fixed = (h_before_BH.detach(), value_before_B.detach(), chosen_B)
    attributions, delta = IntegratedGradients(read).attribute(
        inputs,
        baselines=base,
        additional_forward_args=fixed,
        n_steps=steps,
        internal_batch_size=max(64, len(chosen_B)),
        return_convergence_delta=True,
    )
    with torch.no_grad():
        change = read(*inputs, *fixed) - read(*base, *fixed)
    return dict(zip(names, attributions, strict=True)), change, delta


def randomised(agent: Agent, seed: int) -> Agent:
    """A copy of the agent with the entries of every weight tensor shuffled: nothing learned, same scales."""
    if not isinstance(agent, torch.nn.Module):
        raise TypeError("only an agent that is a torch module can be randomised")
    other = copy.deepcopy(agent)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            order = torch.randperm(p.numel(), generator=generator).to(p.device)
            p.copy_(p.flatten()[order].view_as(p))
    out: Agent = other
    return out


def rank_correlation(a_BX: np.ndarray, b_BX: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation [B] of the absolute values of two maps, row by row; NaN for a constant map."""
    from scipy.stats import rankdata

    ranks = [rankdata(np.abs(x.reshape(len(x), -1)), axis=1) for x in (a_BX, b_BX)]
    a, b = (r - r.mean(1, keepdims=True) for r in ranks)
    norm = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), norm, out=np.full(len(a), np.nan), where=norm > 0)


# The whole of it


class Explained(NamedTuple):
    """What ``explain`` gives: a row a sample."""

    obs: dict[str, np.ndarray]  # [S, T+1, ...], of the rollout without noise
    action: np.ndarray  # int64 [S, T+1]
    value: np.ndarray  # [S, T+1]
    alive: np.ndarray  # bool [S, T+1]
    arrays: dict[str, np.ndarray]  # gradients, by the names under which they are stored
    y: dict[str, np.ndarray]  # quantity -> [S], at the target step, without noise


def noised(simulator: Simulator, z_SZ: Tensor, ids: Sequence[int], copies: int, sigma: float, seed: int) -> Tensor:
    """[S * copies, Z]: legal latents near each; a sample's noise depends on seed and id alone."""
    rows = []
    for z, i in zip(z_SZ, ids, strict=True):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + i + 1) % 2**63)
        rows.append(z + sigma * torch.randn(copies, len(z), generator=generator, dtype=z.dtype).to(z.device))
    return simulator.normalise(torch.cat(rows))


def explain(
    simulator: Simulator, z_SZ: Tensor, ids: Sequence[int], quantities: Sequence[Quantity], config: SaliencyConfig
) -> Explained:
    """Every gradient of every quantity for a batch of latents [S, Z] (no files, no global state).

    ids: names of the samples, which seed their noise.  Raises UserError where a gradient is NaN or infinite.
    """
    target, copies = config.target_step, config.copies
    with torch.no_grad():
        start = simulator.start(z_SZ)
        states, outs = unroll(simulator, start, config.steps + 1)
    chosen_S = outs[target].action_B
    clean = reading_at(outs, target, chosen_S)
    fields = list(outs[0].obs)
    obs = {name: torch.stack([out.obs[name] for out in outs], 1) for name in fields}
    z_BZ = noised(simulator, z_SZ, ids, copies, config.noise, config.seed)
    arrays: dict[str, np.ndarray] = {}

    def put(name: str, x: Tensor) -> None:
        whole_S = torch.isfinite(x.detach().flatten(1) if x.ndim > 1 else x.detach()[:, None]).all(1)
        if not whole_S.all():
            broken = [i for i, whole in zip(ids, whole_S.tolist(), strict=True) if not whole]
            raise UserError(
                f"{name} is NaN or infinite at sample {broken[0]} ({len(broken)} of {len(whole_S)} samples): the "
                "simulator or its samples are broken; choose other --sample_ids, or train the simulator again"
            )
        arrays[name] = x.detach().to("cpu", torch.float32).numpy()

    per_cut = {
        env_grads: gradients(
            simulator, z_BZ, chosen_S.repeat_interleave(copies), quantities, target,
            steps=config.steps, copies=copies, env_grads=env_grads,
        )
        for env_grads in (True, False)
    }  # fmt: skip
    other = randomised(simulator.agent, config.seed)
    seen = {name: x[:, : target + 1] for name, x in obs.items()}
    baseline = {name: torch.zeros_like(x[:, 0]) if config.baseline == "black" else x.mean(1) for name, x in obs.items()}
    for q, whole, cut in zip(quantities, per_cut[True], per_cut[False], strict=True):
        for what in (*fields, "h", "d"):
            a = whole.obs[what] if what in fields else getattr(whole, what)
            b = cut.obs[what] if what in fields else getattr(cut, what)
            put(f"grad_{what}_{q.name}", a)
            put(f"grad_{what}_{q.name}_agent_only", b)
            put(f"grad_{what}_{q.name}_through_world", a - b)
        mine, theirs = (
            agent_gradients(agent, seen, start.h_BH, chosen_S, q)[fields[0]].cpu().numpy()
            for agent in (simulator.agent, other)
        )
        arrays[f"randomised_correlation_{q.name}"] = rank_correlation(mine[:, target], theirs[:, target])
        if config.integrated_steps:
            attributions, change, delta = integrated_gradients(
                simulator.agent, {n: x[:, target] for n, x in obs.items()}, baseline, states[target].h_BH,
                clean.value_before_B, chosen_S, q, config.integrated_steps,
            )  # fmt: skip
            for name, x in attributions.items():
                put(f"integrated_{name}_{q.name}", x)
            put(f"integrated_change_{q.name}", change)
            put(f"integrated_delta_{q.name}", delta)
    return Explained(
        obs={name: x.cpu().numpy() for name, x in obs.items()},
        action=torch.stack([out.action_B for out in outs], 1).cpu().numpy(),
        value=torch.stack([out.value_B for out in outs], 1).cpu().numpy(),
        alive=torch.stack([out.alive_B for out in outs], 1).cpu().numpy(),
        arrays=arrays,
        y={q.name: q.read(clean).cpu().numpy() for q in quantities},
    )


def summarise(
    result: artefacts.Result, quantities: Sequence[Quantity], ids: Sequence[int], units: np.ndarray, seed: int
) -> None:
    """Put the table ``saliency`` (a row a sample and quantity) and its means with intervals into a result.

    Samples that ended before the target step are in the table, not in the means.  units: the independent
    episode of each sample."""
    a = result.arrays
    target = result.notes["target_step"]
    fields = result.notes["fields"]
    rows: list[dict[str, Any]] = []
    for q in quantities:
        sizes = {
            part: np.sqrt(
                sum(
                    (a[f"grad_{f}_{q.name}{part}"].reshape(len(ids), -1).astype(np.float64) ** 2).sum(1) for f in fields
                )
            )
            for part in ("", "_agent_only", "_through_world")
        }
        for s, i in enumerate(ids):
            row = {
                "sample": "combined" if result.notes["combined"] else i,
                "quantity": q.name,
                "unit": q.unit,
                "y": float(a[f"y_{q.name}"][s]),
                "alive": bool(a["alive"][s, target]),
                "gradient_norm": float(sizes[""][s]),
                "gradient_norm_agent_only": float(sizes["_agent_only"][s]),
                "gradient_norm_through_world": float(sizes["_through_world"][s]),
                "randomised_correlation": float(a[f"randomised_correlation_{q.name}"][s]),
            }
            if f"integrated_delta_{q.name}" in a:
                row["integrated_change"] = float(a[f"integrated_change_{q.name}"][s])
                row["integrated_delta"] = float(a[f"integrated_delta_{q.name}"][s])
            rows.append(row)
        mine = [row for row in rows if row["quantity"] == q.name]
        ratio = sizes["_through_world"] / np.maximum(sizes[""], np.finfo(np.float64).tiny)
        means = {
            "through_world": (ratio, "norm of the gradient through the world / norm of the whole"),
            "randomised_correlation": (a[f"randomised_correlation_{q.name}"], "Spearman correlation of |gradient|"),
        }
        if f"integrated_delta_{q.name}" in a:
            means["completeness_delta"] = (np.abs([r["integrated_delta"] for r in mine]), q.unit)
        for name, (values, unit) in means.items():
            known = np.isfinite(values) & a["alive"][:, target]
            if known.any():
                e = bootstrap_mean(np.asarray(values, np.float64)[known], units[known], rng=np.random.default_rng(seed))
                result.scalar(f"{name}_{q.name}", e.value, unit, e.n, (e.low, e.high))
    result.tables["saliency"] = rows


# Pictures

BLUE, RED, GOLD = (40, 90, 255), (255, 40, 40), (255, 190, 0)
TILE, GAP, LABEL = 128, 4, 118


def signed_map(grad: np.ndarray) -> np.ndarray:
    """Gradient [..., 64, 64, 3] -> summed over colours and blurred by one pixel, for display only."""
    from scipy.ndimage import gaussian_filter

    flat = grad.sum(-1)
    out: np.ndarray = gaussian_filter(flat, sigma=(0,) * (flat.ndim - 2) + (1, 1))
    return out


def overlay(frame: np.ndarray, signed: np.ndarray, scale: float) -> np.ndarray:
    """uint8 frame [64, 64, 3] in grey under a signed map: blue where positive, red where negative; full
    colour at ``scale``."""
    grey = frame.astype(np.float64).mean(-1, keepdims=True) * 0.55
    strength = np.clip(np.abs(signed) / scale, 0, 1)[..., None] if scale > 0 else np.zeros((*signed.shape, 1))
    colour = np.where(signed[..., None] > 0, np.array(BLUE, np.float64), np.array(RED, np.float64))
    return (grey * (1 - strength) + colour * strength).astype(np.uint8)


def action_direction(name: str) -> tuple[int, int]:
    """(right, down) of an action, from its name; (0, 0) for one that does not move."""
    known = re.fullmatch(r"(up|down)?(left|right)?", name)
    if not known:
        return 0, 0
    return {"left": -1, "right": 1}.get(known[2], 0), {"up": -1, "down": 1}.get(known[1], 0)


def arrow(draw: Any, x: float, y: float, name: str, size: float, font: Any) -> None:
    """An action at (x, y): an arrow if its name says where to, and the name itself."""
    dx, dy = action_direction(name)
    norm = float(np.hypot(dx, dy))
    if not norm:
        draw.text((x, y), name, fill="black", anchor="mm", font=font)
        return
    ux, uy = dx / norm, dy / norm
    tip, tail = (x + ux * size, y + uy * size), (x - ux * size, y - uy * size)
    draw.line([tail, tip], fill="black", width=3)
    wings = [(tip[0] - size * (0.8 * ux + s * 0.5 * uy), tip[1] - size * (0.8 * uy - s * 0.5 * ux)) for s in (-1, 1)]
    draw.polygon([(tip[0] + 2 * ux, tip[1] + 2 * uy), *wings], fill="black")


class Strip(NamedTuple):
    """What is drawn of one sample and one quantity."""

    frames: np.ndarray  # uint8 [T+1, 64, 64, 3]
    maps: dict[str, np.ndarray]  # row label -> signed [T+1, 64, 64]
    integrated: np.ndarray | None  # signed [64, 64], at the target
    actions: list[str]
    value: np.ndarray
    alive: np.ndarray
    target: int
    title: str


def strip_of(result: artefacts.Result, s: int, quantity: str, field: str, action_names: Sequence[str]) -> Strip:
    """The drawing data of row ``s`` of a result."""
    a = result.arrays
    parts = {"whole gradient": "", "agent only": "_agent_only", "through world": "_through_world"}
    integrated = a.get(f"integrated_{field}_{quantity}")
    target = result.notes["target_step"]
    name = "combined samples" if result.notes["combined"] else f"sample {result.arrays['sample_ids'][s]}"
    actions = [action_names[i] for i in a["action"][s]]
    chosen = f" ({actions[target]})" if quantity == "action" else ""
    unit = result.notes["units"][quantity]
    return Strip(
        frames=a[field][s],
        maps={label: signed_map(a[f"grad_{field}_{quantity}{part}"][s]) for label, part in parts.items()},
        integrated=None if integrated is None else signed_map(integrated[s]),
        actions=actions,
        value=a["value"][s],
        alive=a["alive"][s],
        target=target,
        title=f"{name}: {quantity}{chosen} at step {target} = {a[f'y_{quantity}'][s]:.3f} {unit}",
    )


def draw_strip(strip: Strip) -> Any:
    """A PIL image: actions, frames, saliency with and without the world, integrated gradients, values."""
    from PIL import Image, ImageDraw, ImageFont

    font, small = ImageFont.load_default(14), ImageFont.load_default(12)
    columns = len(strip.frames)
    scale = display_scale(strip)
    rows = ["frames", *strip.maps]
    top, arrows = 28, 30
    extra = strip.integrated is not None
    height = top + arrows + (len(rows) + extra) * (TILE + GAP) + 24
    image = Image.new("RGB", (LABEL + columns * (TILE + GAP), height), "white")
    draw = ImageDraw.Draw(image)
    full = f"blue: raises it, red: lowers it; full colour at {scale:.2g} per unit of brightness"
    draw.text((6, 6), f"{strip.title}    [{full}]", fill="black", font=font)
    draw.text((6, top + 8), "action", fill="black", font=small)
    for t, name in enumerate(strip.actions):
        arrow(draw, LABEL + t * (TILE + GAP) + TILE / 2, top + arrows / 2, name, 10, small)

    def tile(pixels: np.ndarray, row: int, t: int) -> None:
        big = Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.NEAREST)
        image.paste(big, (LABEL + t * (TILE + GAP), top + arrows + row * (TILE + GAP)))

    for row, label in enumerate(rows):
        draw.text((6, top + arrows + row * (TILE + GAP) + TILE // 2), label, fill="black", font=small)
        for t in range(columns):
            frame = strip.frames[t]
            tile(frame if row == 0 else overlay(frame, strip.maps[label][t], scale), row, t)
    if strip.integrated is not None:
        largest = float(np.quantile(np.abs(strip.integrated), 0.995))
        y = top + arrows + len(rows) * (TILE + GAP)
        draw.text((6, y + TILE // 2 - 8), "integrated\n(agent, own scale)", fill="black", font=small)
        tile(overlay(strip.frames[strip.target], strip.integrated, largest), len(rows), strip.target)
    left = LABEL + strip.target * (TILE + GAP)
    draw.rectangle((left - 3, top + arrows - 3, left + TILE + 2, height - 24), outline=GOLD, width=3)
    for t in range(columns):
        x = LABEL + t * (TILE + GAP) + TILE / 2
        words = f"t={t}  V={strip.value[t]:.2f}" + (" target" if t == strip.target else "")
        draw.text((x, height - 11), words if strip.alive[t] else f"t={t} ended", fill="black", anchor="mm", font=small)
    return image


def display_scale(strip: Strip) -> float:
    """The gradient that is drawn in full colour: the 99.5 % quantile up to the target, one for all rows."""
    return float(np.quantile(np.abs(next(iter(strip.maps.values()))[: strip.target + 1]), 0.995))


def video_frames(strip: Strip) -> list[np.ndarray]:
    """uint8 [304, 512, 3] a step: the frame and, beside it, the whole gradient's overlay."""
    from PIL import Image, ImageDraw, ImageFont

    font, side, scale = ImageFont.load_default(15), 256, display_scale(strip)
    signed = next(iter(strip.maps.values()))
    out = []
    for t, frame in enumerate(strip.frames):
        image = Image.new("RGB", (2 * side, side + 48), GOLD if t == strip.target else "white")
        draw = ImageDraw.Draw(image)
        draw.text((6, 4), strip.title, fill="black", font=font)
        words = f"t={t}  V={strip.value[t]:.2f}" if strip.alive[t] else f"t={t}  ended"
        draw.text((6, 25), words + ("  (target)" if t == strip.target else ""), fill="black", font=font)
        arrow(draw, side + 60, 34, strip.actions[t], 9, font)
        for x, pixels in ((0, frame), (side, overlay(frame, signed[t], scale))):
            image.paste(Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST), (x, 48))
        out.append(np.asarray(image))
    return out


def draw(result: artefacts.Result, path: Path, action_names: Sequence[str], video: bool) -> None:
    """A PNG strip (and an MP4) a sample and quantity; only for worlds whose observation is a picture."""
    pictures = [f for f in result.notes["fields"] if result.arrays[f].dtype == np.uint8 and result.arrays[f].ndim == 5]
    if not pictures:
        result.notes["figures"] = "none: no observation field of this world is a picture"
        return
    jobs = [(s, q) for s in range(len(result.arrays["sample_ids"])) for q in result.notes["units"]]
    for s, quantity in track(jobs, "drawing", unit="strips"):
        strip = strip_of(result, s, quantity, pictures[0], action_names)
        name = "combined" if result.notes["combined"] else str(result.arrays["sample_ids"][s])
        draw_strip(strip).save(path / f"sample_{name}_{quantity}.png")
        if video:
            write_video(path / f"sample_{name}_{quantity}.mp4", video_frames(strip))


# The stage


def open_samples(path: Path, simulator: torch.nn.Module) -> RolloutStore:
    """Simulated rollouts of this very simulator; UserError otherwise."""
    store = RolloutStore(path)
    facts = store.manifest["facts"]
    if facts.get("source") != "simulated":
        raise UserError(f"{path} holds real rollouts; --samples needs simulated ones (generative.record_samples)")
    if facts.get("simulator") != fingerprint(simulator):
        raise UserError(f"{path} was recorded in another simulator; record samples in this one first")
    return store


def source_episodes(store: RolloutStore, episodes: Sequence[int]) -> np.ndarray:
    """int64: which independent episode each rollout belongs to.  Simulated rollouts that start in the same real
    episode are one; any other rollout is its own."""
    starts = [store.meta(e).get("start") for e in episodes]
    return np.array([-1 - e if s is None else int(s[0]) for e, s in zip(episodes, starts, strict=True)], np.int64)


def bases_in(path: Path | None, agent: str, device: torch.device) -> Callable[[str], Basis]:
    """kind -> basis of the hidden-states directory, each read once."""
    known: dict[str, Basis] = {}

    def basis_of(kind: str) -> Basis:
        if path is None:
            raise UserError(f"the quantity {kind}_ID is a direction and needs --hidden_states DIR")
        if kind not in known:
            known[kind] = load_basis(path, kind, agent).to(device)
        return known[kind]

    return basis_of


def compute(
    simulator: Simulator,
    z_SZ: Tensor,
    ids: Sequence[int],
    quantities: Sequence[Quantity],
    config: SaliencyConfig,
    units: np.ndarray | None = None,
) -> artefacts.Result:
    """``explain`` in chunks that fit into memory, as a Result.

    ids of combined samples: [-1].  units: the independent episode of each sample (default: its own).
    """
    size = config.batch_size or samples_that_fit(
        simulator, z_SZ, config.target_step + 1, config.copies, config.memory_gb * 1e9
    )
    chunks = [slice(i, i + size) for i in range(0, len(ids), size)]
    parts = [explain(simulator, z_SZ[c], ids[c], quantities, config) for c in track(chunks, "saliency", unit="batches")]

    def joined(rows: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(rows)

    result = artefacts.Result()
    fields = list(parts[0].obs)
    for name in fields:
        x = joined([p.obs[name] for p in parts])
        picture = x.ndim == 5 and x.shape[-1] == 3
        result.arrays[name] = (x * 255).round().clip(0, 255).astype(np.uint8) if picture else x
    for name in ("action", "value", "alive"):
        result.arrays[name] = joined([getattr(p, name) for p in parts])
    for name in parts[0].arrays:
        result.arrays[name] = joined([p.arrays[name] for p in parts])
    for q in quantities:
        result.arrays[f"y_{q.name}"] = joined([p.y[q.name] for p in parts])
    result.arrays["sample_ids"] = np.asarray(ids, np.int64)
    result.notes |= {
        "target_step": config.target_step,
        "units": {q.name: q.unit for q in quantities},
        "fields": fields,
        "combined": list(ids) == [-1],
        "batch_size": size,
    }
    summarise(result, quantities, ids, np.asarray(ids) if units is None else units, config.seed)
    return result


def main(config: SaliencyConfig) -> None:
    from generative.simulator import load_simulator

    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    if not 0 <= config.target_step <= config.steps:
        raise UserError(f"--target_step {config.target_step} is not between 0 and --steps {config.steps}")
    if config.copies < 1 or config.noise < 0 or config.integrated_steps < 0 or config.batch_size < 0:
        raise UserError("--copies must be at least 1; --noise, --integrated_steps and --batch_size not negative")
    if config.video:
        check_video()
    simulator = load_simulator(config.simulator, device)
    agent, names = fingerprint(simulator.agent), simulator.spec.action_names
    with open_samples(config.samples, simulator) as store:
        ids = parse_sample_ids(config.sample_ids, len(store))
        quantities = find_quantities(
            config.quantities, names, bases_in(config.hidden_states, agent, device), config.basis_kind
        )
        late = next((q for q in quantities if config.target_step < q.first_step), None)
        if late is not None:
            raise UserError(f"{late.name} needs --target_step {late.first_step} or later")
        z_SZ, units = torch.from_numpy(store.latents(ids)).to(device), source_episodes(store, ids)
    combined_ids = ids
    if config.combine_samples_not_iterate:
        z_SZ, ids = simulator.normalise(z_SZ.mean(0, keepdim=True)), [-1]
        units = units[:1]
    inputs = {"simulator": config.simulator, "samples": config.samples}
    if config.hidden_states is not None:
        inputs["hidden_states"] = config.hidden_states
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.facts = {"agent": agent, "simulator": fingerprint(simulator)}
        result = compute(simulator, z_SZ, ids, quantities, config, units)
        if config.combine_samples_not_iterate:
            result.notes["combined_ids"] = combined_ids
        draw(result, run.path, names, config.video)
        result.save(run.path)
        run.metrics |= result.scalars
    print(f"saliency of {len(ids)} rollout(s), {len(quantities)} quantities: {config.out}")


if __name__ == "__main__":
    cli.run(SaliencyConfig, main, STAGE)
