"""The agent's memory as a dynamical system: ``python -m analysis.dynamics --rollouts runs/rollouts``.

With its input held still, an agent's recurrence is a map h -> F(h; e).  This finds its fixed points from recorded
states (Sussillo & Barak 2013, "Opening the black box", Neural Computation 25), linearises there (eigenvalues, time
constants, line attractors), and measures how fast neighbouring states part or join (Lyapunov exponents; Benettin et al.
1980), under still inputs and along recorded episodes.

A fixed point says what the memory would settle to if the world stood still, which it does not: how long a mode lasts
beside how long an episode is, and the exponents along recorded episodes, say how much that matters.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.recurrent import load_agent
from analysis.behaviour_figures import image_field
from analysis.behaviours import load_behaviours
from analysis.clusters import STEPS_PER_CLUSTER, k_means
from analysis.coupling import check_made_from, spread_over_episodes
from analysis.states import open_stores
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import Agent, UserError
from core.directions import Basis, fingerprint, load_basis
from core.episodes import RolloutStore
from core.figures import BAND, HELD, INK, LINE, MEMORY, MEMORY_PALE, REAL, USUAL, figure_of
from core.progress import bar
from core.stats import few, ratios, share_of
from core.threads import one_thread

STAGE = "dynamics"
FIXED = 1e-8  # speed below which a point counts as fixed, rms standard deviations a step (in float64)
LOST = 10.0  # a search that leaves the recorded states by so many standard deviations is given up
FRAMES = 1024  # encoded at once


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig:
    """Fixed points, time constants and Lyapunov exponents of an agent's recurrence."""

    agent: Path = Path("bundles/coinrun-demo/agent")
    """agent run directory"""
    rollouts: Path = Path("runs/demo/rollouts")
    """real rollouts of that agent: where searches start, what is held still, what drives the exponents"""
    behaviours: Path | None = None
    """behaviours run directory: hold the central frame of every behaviour still, instead of typical frames"""
    hidden_states: Path | None = None
    """hidden_states run directory: say which directions of --basis_kind each mode lies along"""
    basis_kind: str = "ica"
    """pca, ica, nmf, neurons"""
    out: Path = Path("runs/dynamics")
    """run directory to write"""
    inputs: int = 6
    """typical frames held still (without --behaviours), beside the mean input"""
    starts: int = 128
    """recorded states from which the search for fixed points starts, from as many episodes as there are"""
    iterations: int = 300
    """most steps of that search"""
    slow_speed: float = 0.01
    """a point where the search ends and the state still moves, but less than this, is a slow point (rms standard
    deviations of the recorded states a step)"""
    merge: float = 0.1
    """points nearer than this are one (rms standard deviations)"""
    settle: int = 300
    """steps after which a state under a still input has settled"""
    slow_steps: float = 20.0
    """a mode with at least this time constant (steps) is slow: a line attractor has one, a plane two"""
    burn_in: int = 32
    """first steps of an episode that the Lyapunov exponents leave out, in which their directions turn to where
    differences last longest; with too few, memory looks shorter than it is"""
    lyapunov_steps: int = 96
    """at most so many steps of an episode, and of a still input, for the exponents; --burn_in is among them"""
    seed: int = 0
    """seed of the choice of frames and starts, and of the intervals"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""


# The map


def advance(agent: Agent, e_BE: Tensor, h_BH: Tensor) -> Tensor:
    """The next state, within an episode."""
    return agent.advance(e_BE, h_BH, torch.zeros(len(h_BH), dtype=torch.bool, device=h_BH.device))


def step_and_jacobian(agent: Agent, e_BE: Tensor, h_BH: Tensor) -> tuple[Tensor, Tensor]:
    """F(h; e) [B, H] and dF_i / dh_j [B, H, H]."""
    h = h_BH.detach().requires_grad_()
    with torch.enable_grad():
        after = advance(agent, e_BE, h)
        size = after.shape[1]
        # Rows do not touch each other: the gradient of a column's sum holds each row's own.
        rows = [torch.autograd.grad(after[:, i].sum(), h, retain_graph=i + 1 < size)[0] for i in range(size)]
    return after.detach(), torch.stack(rows, 1)


class Search(NamedTuple):
    """Where searches for a fixed point ended, a row a start."""

    h_BH: Tensor
    speed_B: Tensor  # rms standard deviations a step
    settled_B: Tensor  # bool: a local minimum of the speed (0 or not); false: out of iterations or lost


def search(agent: Agent, e_BE: Tensor, h_BH: Tensor, std_H: Tensor, iterations: int) -> Search:
    """Minimise the speed |F(h; e) - h| from every start by Levenberg-Marquardt, on z-scored states.

    Finds repelling points as well as attracting ones.  Give float64: the gradient's floor decides what is fixed.
    """
    start, h = h_BH, h_BH.clone()
    eye = torch.eye(h.shape[1], dtype=h.dtype, device=h.device)
    damping = torch.full((len(h), 1, 1), 1e-2, dtype=h.dtype, device=h.device)
    settled = torch.zeros(len(h), dtype=torch.bool, device=h.device)

    def speed_of(after: Tensor, before: Tensor) -> Tensor:
        return ((after - before) / std_H).square().mean(1).sqrt()

    after, jacobian = step_and_jacobian(agent, e_BE, h)
    speed = speed_of(after, h)
    for _ in range(iterations):
        residual = (after - h) / std_H
        slope = (jacobian - eye) * std_H / std_H[:, None]
        gradient = torch.einsum("bij,bi->bj", slope, residual)
        # A local minimum that is no fixed point: the speed is far above what its slope could still take away.
        settled = (speed < FIXED) | (gradient.square().mean(1).sqrt() < 1e-6 * speed)
        lost = ((h - start) / std_H).abs().amax(1) > LOST
        if (settled | lost).all():
            break
        normal = slope.transpose(1, 2) @ slope
        move = torch.linalg.solve(normal + damping * eye, -gradient[..., None])[..., 0] * std_H
        move = torch.where((settled | lost)[:, None], 0.0, move)
        tried_after, tried_jacobian = step_and_jacobian(agent, e_BE, h + move)
        tried = speed_of(tried_after, h + move)
        better = tried < speed
        damping = torch.where(better[:, None, None], damping * 0.2, damping * 5).clamp(1e-14, 1e8)
        h = torch.where(better[:, None], h + move, h)
        after = torch.where(better[:, None], tried_after, after)
        jacobian = torch.where(better[:, None, None], tried_jacobian, jacobian)
        speed = torch.where(better, tried, speed)
    return Search(h, speed, settled & (((h - start) / std_H).abs().amax(1) <= LOST))


def distinct(h_NH: Tensor, speed_N: Tensor, std_H: Tensor, merge: float) -> list[int]:
    """Rows that differ by more than ``merge`` (rms standard deviations), the slowest of each neighbourhood."""
    kept: list[int] = []
    for n in torch.argsort(speed_N, stable=True).tolist():
        gaps = [float(((h_NH[n] - h_NH[k]) / std_H).square().mean().sqrt()) for k in kept]
        if not gaps or min(gaps) > merge:
            kept.append(n)
    return kept


def settle(agent: Agent, e_BE: Tensor, h_BH: Tensor, steps: int) -> Tensor:
    """The states after ``steps`` steps of a still input."""
    with torch.no_grad():
        for _ in range(steps):
            h_BH = advance(agent, e_BE, h_BH)
    return h_BH


# Linearisation


class Modes(NamedTuple):
    """Eigenmodes at one point, the slowest to decay (or fastest to grow) first."""

    value_M: np.ndarray  # complex eigenvalues
    right_HM: np.ndarray  # complex, unit columns: where a mode is
    left_MH: np.ndarray  # complex, left @ right = 1: what excites it


def modes(jacobian_HH: np.ndarray) -> Modes:
    """Eigenvalues and eigenvectors of one Jacobian, largest modulus first.

    ``left`` are rows of the pseudo-inverse of ``right``: the inverse, unless the Jacobian is defective.
    """
    value_M, right_HM = np.linalg.eig(jacobian_HH)
    order = np.lexsort((-value_M.imag, -value_M.real, -np.abs(value_M).round(12)))
    value_M, right_HM = value_M[order], right_HM[:, order]
    return Modes(value_M, right_HM, np.linalg.pinv(right_HM))


def time_constant(value: complex) -> float:
    """Steps in which a mode shrinks (modulus below 1) or grows (above) by a factor e; infinite at exactly 1."""
    size = abs(value)
    if size == 0:
        return 0.0
    rate = abs(float(np.log(size)))
    return 1 / rate if rate > 0 else float("inf")


def period(value: complex) -> float:
    """Steps of one turn of an oscillating mode (2 for a negative real one); infinite for a positive real one."""
    angle = abs(float(np.angle(value)))
    return 2 * float(np.pi) / angle if angle > 1e-9 else float("inf")


def stability(value_M: np.ndarray) -> str:
    """stable: every mode shrinks; unstable: every mode grows; saddle: some of each; marginal: one stays as it is."""
    size = np.abs(value_M)
    if (np.abs(size - 1) < 1e-9).any():
        return "marginal"
    return "stable" if (size < 1).all() else "unstable" if (size > 1).all() else "saddle"


def attractor(value_M: np.ndarray, slow_steps: float) -> str:
    """What slow modes (decaying, or growing as slowly) make of a point: point, line, plane, or how many dimensions.

    Counted where no mode grows faster than that; else ``none``.
    """
    slow = np.array([time_constant(v) >= slow_steps for v in value_M])
    if ((np.abs(value_M) > 1) & ~slow).any():
        return "none"
    return {0: "point", 1: "line", 2: "plane"}.get(int(slow.sum()), f"{int(slow.sum())} slow dimensions")


def persistence(agent: Agent, e_E: Tensor, h_H: Tensor, mode: Modes, m: int, recorded_NH: Tensor, steps: int) -> float:
    """Share of a displacement along a real mode that is left after ``steps`` steps of the full, non-linear map.

    The state is moved both ways by one standard deviation of the recorded states' coordinate along the mode.  A
    linear map gives eigenvalue ** steps; a line attractor gives about 1 at any distance on the line.
    """
    right_H, left_H = (
        torch.from_numpy(np.ascontiguousarray(v.real)).to(h_H) for v in (mode.right_HM[:, m], mode.left_MH[m])
    )
    spread = (recorded_NH @ left_H).std()
    moved = torch.stack([h_H + s * spread * right_H for s in (1, -1)] + [h_H])
    after = settle(agent, e_E.expand(len(moved), -1), moved, steps)
    # The undisturbed run beside them: a slow point drifts by itself.
    left = ((after[:2] - after[2]) @ left_H) / (spread * torch.tensor([1.0, -1.0]).to(h_H))
    return float(left.mean())


# Lyapunov exponents


def lyapunov(
    agent: Agent, e_BTE: Tensor, h_BH: Tensor, length_B: np.ndarray, burn_in: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finite-time Lyapunov exponents, nats a step: float64 [B, H], and the steps they rest on [B].

    Of the states h driven by inputs e[:, t] for ``length`` steps each, the first ``burn_in`` not counted (they only
    turn the frame of directions, a random one, to where it belongs).  By QR of the Jacobians' product (Benettin et al.
    1980).  Largest first by their mean over all steps.  An episode's own are in the same order and not sorted: the
    largest of several that differ by chance only is too large, and the more so the shorter the episode.
    """
    h, size = h_BH, h_BH.shape[1]
    # Along the axes a diagonal Jacobian would never turn it.
    first = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frame = torch.linalg.qr(first)[0].to(h).expand(len(h), -1, -1)
    total = torch.zeros(len(h), size, dtype=h.dtype, device=h.device)
    length = torch.from_numpy(np.asarray(length_B)).to(h.device)
    tiny = torch.finfo(h.dtype).tiny
    with bar("Lyapunov exponents", e_BTE.shape[1], "steps") as progress:
        for t in range(e_BTE.shape[1]):
            h, jacobian = step_and_jacobian(agent, e_BTE[:, t], h)
            with one_thread():
                frame, r = torch.linalg.qr(jacobian @ frame)
            growth = torch.diagonal(r, dim1=1, dim2=2).abs().clamp_min(tiny).log()
            total += torch.where((t >= burn_in) & (t < length), 1.0, 0.0)[:, None] * growth
            progress.advance()
    steps_B = np.maximum(np.minimum(length_B, e_BTE.shape[1]) - burn_in, 0)
    total_BH = total.cpu().numpy()
    total_BH = total_BH[:, np.argsort(-total_BH.sum(0), kind="stable")]
    return total_BH / np.maximum(steps_B, 1)[:, None], steps_B


# The stage


class Still(NamedTuple):
    """Inputs held still: a name, the (episode, t) of its frame (None: no frame), and the embedding."""

    name: str
    where: tuple[int, int] | None
    e_E: Tensor


class Recorded(NamedTuple):
    """The agent's recorded steps, pooled: states, embeddings, and (episode, t)."""

    h_NH: Tensor
    e_NE: Tensor
    index_N2: np.ndarray


def read(agent: Agent, store: RolloutStore) -> Recorded:
    """Every recorded state and, by the agent's own encoder, every embedding; float64."""
    names = list(store.spec.obs)
    columns, index_N2 = store.pooled("h", *(f"obs/{n}" for n in names))
    like = agent.initial(1)
    parts = []
    with torch.no_grad():
        for n in range(0, len(index_N2), FRAMES):
            obs = {k: torch.from_numpy(columns[f"obs/{k}"][n : n + FRAMES]).to(like.device) for k in names}
            parts.append(agent.encode(obs).double())
    return Recorded(torch.from_numpy(columns["h"]).to(like.device).double(), torch.cat(parts), index_N2)


def typical(recorded: Recorded, count: int, seed: int) -> list[Still]:
    """The mean input, and ``count`` recorded ones: the nearest to the centres of clusters of all inputs."""
    out = [Still("mean input", None, recorded.e_NE.mean(0))]
    if count == 0:
        return out
    if len(recorded.e_NE) < STEPS_PER_CLUSTER * count:
        raise UserError(f"--inputs {count}: {len(recorded.e_NE)} recorded steps are too few; ask for fewer")
    e_NE = recorded.e_NE.cpu().numpy()
    centres = k_means(e_NE, count, seed) if count > 1 else e_NE.mean(0, keepdims=True)
    for centre in centres:
        n = int(((e_NE - centre) ** 2).sum(1).argmin())
        e, t = (int(v) for v in recorded.index_N2[n])
        out.append(Still(f"frame {e}:{t}", (e, t), recorded.e_NE[n]))
    return out


def of_behaviours(recorded: Recorded, path: Path) -> list[Still]:
    """The mean input, and the most central real frame of every behaviour that has one."""
    out = [Still("mean input", None, recorded.e_NE.mean(0))]
    centre = Result.load(path).arrays["centre_index"]
    row_of = {(int(e), int(t)): n for n, (e, t) in enumerate(recorded.index_N2)}
    for b, name in load_behaviours(path).names.items():
        real = [(int(e), int(t)) for source, e, t in centre[b] if source == 0] if centre.shape[1] else []
        if real:
            out.append(Still(name, real[0], recorded.e_NE[row_of[real[0]]]))
    if len(out) == 1:
        raise UserError(f"{path} shows no real frame of any behaviour; run it with --filmstrips 1 or more")
    return out


def analyse(
    agent: Agent, recorded: Recorded, inputs: Sequence[Still], config: DynamicsConfig, basis: Basis | None = None
) -> Result:
    """Fixed points and their modes under every still input, and the exponents.

    Arrays: ``points`` [P, H], ``eigenvalues`` complex [P, H], ``states`` [M, H] (recorded, for drawing), ``std``;
    ``lyapunov_driven`` [E, H] an episode each, ``lyapunov_still`` [inputs, starts, H].  Tables ``points`` (a row a
    point), ``modes`` (a row a point and slow or leading mode), ``lyapunov`` (a row an exponent, with intervals).
    """
    rng = np.random.default_rng(config.seed)
    std_H = recorded.h_NH.std(0)
    if not std_H.max() > 0:
        raise UserError("the hidden states never change; there is no memory to analyse")
    # A unit that never changes has no scale of its own: by its rounding error every search would seem to run away.
    std_H = torch.where(std_H > 1e-6 * std_H.max(), std_H, std_H.max())
    episode_N = recorded.index_N2[:, 0]
    chosen = spread_over_episodes(np.arange(len(episode_N)), episode_N, config.starts, rng)
    h_SH = recorded.h_NH[chosen]
    result = Result(notes={"inputs": [{"name": s.name, "where": s.where} for s in inputs]})
    points: list[np.ndarray] = []
    values: list[np.ndarray] = []
    still: list[tuple[np.ndarray, np.ndarray]] = []
    result.tables["points"], result.tables["modes"] = [], []
    in_vain = 0
    with bar("fixed points", len(inputs), "inputs") as progress:
        for number, one in enumerate(inputs):
            e_SE = one.e_E.expand(len(h_SH), -1)
            found = search(agent, e_SE, h_SH, std_H, config.iterations)
            ended = settle(agent, e_SE, h_SH, config.settle)
            use = torch.nonzero(found.settled_B & (found.speed_B < config.slow_speed))[:, 0]
            in_vain += len(h_SH) - len(use)
            kept = use[distinct(found.h_BH[use], found.speed_B[use], std_H, config.merge)].tolist()
            gap_SP = ((ended[:, None] - found.h_BH[kept]) / std_H).square().mean(2).sqrt()
            for at, k in enumerate(kept):
                _, jacobian = step_and_jacobian(agent, one.e_E[None], found.h_BH[k][None])
                mode = modes(jacobian[0].cpu().numpy())
                near = (gap_SP.argmin(1) == at) & (gap_SP[:, at] < config.merge)
                row = point_row(agent, one, found.h_BH[k], float(found.speed_B[k]), mode, recorded, std_H, config)
                share = share_of(near.cpu().numpy(), episode_N[chosen])
                row |= {"settle_here": share.value, "settle_here_low": share.low, "settle_here_high": share.high}
                result.tables["points"].append({"point": len(points), "input": number, "name": one.name, **row})
                result.tables["modes"] += mode_rows(
                    len(points), agent, one, found.h_BH[k], mode, recorded, std_H, config, basis
                )
                points.append(found.h_BH[k].cpu().numpy())
                values.append(mode.value_M)
            steps = np.full(len(h_SH), config.lyapunov_steps)
            along = e_SE[:, None].expand(-1, config.lyapunov_steps, -1)
            still.append(lyapunov(agent, along, ended, steps, config.burn_in))
            progress.advance()
    size = recorded.h_NH.shape[1]
    result.arrays |= {
        "points": np.array(points).reshape(-1, size),
        "eigenvalues": np.array(values).reshape(-1, size),
        "lyapunov_still": np.stack([each for each, _ in still]),
        "states": recorded.h_NH[rng.permutation(len(episode_N))[:4000]].cpu().numpy().astype(np.float32),
        "mean": recorded.h_NH.mean(0).cpu().numpy(),
        "std": std_H.cpu().numpy(),
    }
    driven(result, agent, recorded, config, rng)
    for number, (each, steps) in enumerate(still):
        put_exponents(result, f"input {number}", each, steps, episode_N[chosen], rng)
    fixed = [row for row in result.tables["points"] if row["kind"] == "fixed"]
    result.scalar("fixed_points", len(fixed), f"points in {len(inputs)} still inputs")
    result.scalar("slow_points", len(points) - len(fixed), f"points in {len(inputs)} still inputs")
    result.scalar("searches_in_vain", in_vain, f"of {len(inputs) * len(h_SH)} searches, that came to no point")
    return result


def point_row(
    agent: Agent, one: Still, h_H: Tensor, speed: float, mode: Modes, recorded: Recorded, std_H: Tensor,
    config: DynamicsConfig,
) -> dict[str, Any]:  # fmt: skip
    """What is said of one point: what it is, how near the recorded states it lies, and what the agent does there."""
    with torch.no_grad():
        logits, value = agent.heads(h_H[None])
    nearest = float(((recorded.h_NH - h_H) / std_H).square().mean(1).sqrt().min())
    slowest = mode.value_M[0]
    return {
        "kind": "fixed" if speed < FIXED else "slow",
        "speed": speed,
        "stability": stability(mode.value_M),
        "attractor": attractor(mode.value_M, config.slow_steps),
        "growing": int((np.abs(mode.value_M) > 1).sum()),
        "slow_modes": int(sum(time_constant(v) >= config.slow_steps for v in mode.value_M)),
        "modulus": float(abs(slowest)),
        "time_constant": time_constant(slowest),
        "period": period(slowest),
        "nearest_state": nearest,
        "action": int(logits[0].argmax()),
        "value": float(value[0]),
    }


MODES = 8  # rows of the table ``modes`` a point, at least as many as are slow or grow


def mode_rows(
    number: int, agent: Agent, one: Still, h_H: Tensor, mode: Modes, recorded: Recorded, std_H: Tensor,
    config: DynamicsConfig, basis: Basis | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The leading modes of a point: eigenvalue, time constant, period, what is left of a real displacement, and along
    which directions of the basis the mode lies (|cosine| of z-scored states)."""
    special = sum(time_constant(v) >= config.slow_steps or abs(v) > 1 for v in mode.value_M)
    rows = []
    for m in range(min(len(mode.value_M), max(MODES, special))):
        value = mode.value_M[m]
        if value.imag < 0:
            continue  # the other half of a pair
        real = value.imag == 0 and abs(value) <= 1
        row: dict[str, Any] = {
            "point": number, "mode": m, "real": float(value.real), "imaginary": float(value.imag),
            "modulus": float(abs(value)), "time_constant": time_constant(value), "period": period(value),
            "left_after": int(config.slow_steps),
            "left": persistence(agent, one.e_E, h_H, mode, m, recorded.h_NH, int(config.slow_steps)) if real else None,
            "left_linear": float(value.real ** int(config.slow_steps)) if real else None,
        }  # fmt: skip
        if basis is not None:
            row["directions"] = along(mode.right_HM[:, m], basis)
        rows.append(row)
    return rows


def along(right_H: np.ndarray, basis: Basis, most: int = 3) -> str:
    """The directions that a mode lies along, as in ``3 (0.81), 7 (0.35)``: |cosine| in z-scored states."""
    std_H = basis.std_H.double().cpu().numpy()
    lift_KH = basis.lift_KH.double().cpu().numpy()
    z = right_H / std_H
    cosine_K = np.abs(lift_KH @ z) / (np.linalg.norm(lift_KH, axis=1) * np.linalg.norm(z))
    return ", ".join(f"{i} ({cosine_K[i]:.2f})" for i in np.argsort(-cosine_K)[:most])


def driven(result: Result, agent: Agent, recorded: Recorded, config: DynamicsConfig, rng: np.random.Generator) -> None:
    """Exponents along recorded episodes: the same frames, two memories that differ a little.  Episodes with fewer than
    ``burn_in`` + H/4 steps are too short to say anything and are left out."""
    episode_N = recorded.index_N2[:, 0]
    ids, first, count = np.unique(episode_N, return_index=True, return_counts=True)
    need = config.burn_in + max(4, recorded.h_NH.shape[1] // 4)
    use = count > need
    if not use.any():
        raise UserError(
            f"no episode has {need} steps, which the Lyapunov exponents need; record longer ones, or lower --burn_in"
        )
    length = np.minimum(count[use] - 1, config.lyapunov_steps)  # the first recorded state is where it starts
    rows = first[use, None] + 1 + np.minimum(np.arange(length.max()), length[:, None] - 1)
    each, steps = lyapunov(agent, recorded.e_NE[rows], recorded.h_NH[first[use]], length, config.burn_in)
    result.arrays["lyapunov_driven"], result.arrays["lyapunov_steps"] = each, steps
    result.tables["lyapunov"] = []
    put_exponents(result, "recorded", each, steps, ids[use], rng)
    top = result.tables["lyapunov"][0]
    result.scalar("lyapunov_driven", top["value"], "nats a step, largest", top["n"], (top["low"], top["high"]))
    memory = [-1 / v if v < 0 else float("inf") for v in (top["value"], top["low"], top["high"])]
    # One-sided: a direction that has not turned to the slowest one yet shrinks faster.
    unit = "steps until a difference of memory shrinks by e, or more (finite episodes)"
    result.scalar("memory", memory[0], unit, top["n"], memory[1:])
    result.scalar("episodes_too_short", float((~use).sum()), "episodes left out of the exponents")


def put_exponents(
    result: Result, name: str, each_BH: np.ndarray, steps_B: np.ndarray, unit_B: np.ndarray, rng: np.random.Generator
) -> None:
    """Growth over all steps, by their number, with intervals over whole units: a row an exponent."""
    _, of_B = np.unique(unit_B, return_inverse=True)
    weight_B, units = steps_B.astype(np.float64), int(of_B.max()) + 1
    grown_EH = np.stack([np.bincount(of_B, x_B * weight_B, units) for x_B in each_BH.T], 1)
    found = ratios(grown_EH, np.bincount(of_B, weight_B, units)[:, None], rng=rng).estimates()
    for i, e in enumerate(found):
        result.tables["lyapunov"].append(
            {"input": name, "exponent": i, "value": e.value, "low": e.low, "high": e.high, "n": e.n}
        )


# Figures


COLOURS = {"stable": MEMORY, "saddle": MEMORY_PALE, "unstable": INK, "marginal": USUAL}


def draw_points(result: Result, frames: Sequence[np.ndarray | None]) -> Any:
    """A panel an input: its points and the recorded states in the plane of the states' first two components."""
    a = result.arrays
    z_MH = (a["states"] - a["mean"]) / a["std"]
    plane_H2 = np.linalg.svd(z_MH - z_MH.mean(0), full_matrices=False)[2][:2].T
    xy_M2, points_P2 = z_MH @ plane_H2, ((a["points"] - a["mean"]) / a["std"]) @ plane_H2
    inputs = result.notes["inputs"]
    columns = min(4, len(inputs))
    rows = -(-len(inputs) // columns)
    figure = figure_of(3.4 * columns, 3.5 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for number, (axis, one) in enumerate(zip(axes, inputs, strict=False)):
        axis.scatter(*xy_M2.T, s=1, color=BAND, linewidths=0)
        for row, (x, y) in zip(result.tables["points"], points_P2, strict=True):
            if row["input"] == number:
                fixed = row["kind"] == "fixed"
                axis.plot(x, y, "o" if fixed else "s", color=COLOURS[row["stability"]], markersize=5 if fixed else 4,
                          markerfacecolor=None if fixed else "none")  # fmt: skip
        mine = [r for r in result.tables["points"] if r["input"] == number]
        axis.set_title(f"{one['name']}: {len(mine)} point(s)", fontsize=8)
        if frames[number] is not None:
            inset = axis.inset_axes((0.72, 0.72, 0.28, 0.28))
            inset.imshow(frames[number])
            inset.set_axis_off()
    for axis in axes[len(inputs) :]:
        axis.axis("off")
    for name, colour in COLOURS.items():
        axes[0].plot([], [], "o", color=colour, label=name)
    axes[0].plot([], [], "s", color=INK, markerfacecolor="none", label="slow, not fixed")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(
        "Fixed points of the memory under still inputs (grey: recorded states; plane: two principal components)",
        fontsize=10,
    )
    return figure


def draw_eigenvalues(result: Result, slow_steps: float) -> Any:
    """Eigenvalues at every point in the complex plane, and the time constants they mean."""
    figure = figure_of(9.5, 4.3)
    left, right = figure.subplots(1, 2)
    turn = np.linspace(0, 2 * np.pi, 200)
    left.plot(np.cos(turn), np.sin(turn), color=LINE, linewidth=0.8)
    for row, values in zip(result.tables["points"], result.arrays["eigenvalues"], strict=True):
        colour = COLOURS[row["stability"]]
        left.plot(values.real, values.imag, ".", color=colour, markersize=4, alpha=0.6)
        tau = np.sort([time_constant(v) for v in values if abs(v) < 1])[::-1]
        right.plot(np.arange(1, len(tau) + 1), tau, color=colour, linewidth=0.8, alpha=0.6)
    left.set(xlabel="real part", ylabel="imaginary part", title="Eigenvalues (circle: neither grows nor shrinks)")
    left.set_aspect("equal")
    right.axhline(slow_steps, color=LINE, linestyle="--", linewidth=0.8)
    right.text(1, slow_steps * 1.05, "slow", fontsize=8, color=HELD)
    right.set(xlabel="decaying mode, slowest first", ylabel="time constant (steps)", yscale="log",
              title="Time constants (a line a point)")  # fmt: skip
    for name, colour in COLOURS.items():
        if any(row["stability"] == name for row in result.tables["points"]):
            right.plot([], [], color=colour, label=name)
    if result.tables["points"]:
        right.legend(frameon=False, fontsize=8)
    return figure


def draw_exponents(result: Result) -> Any:
    """The Lyapunov spectrum along recorded episodes and under every still input."""
    figure = figure_of(7, 4)
    axis = figure.subplots()
    axis.axhline(0, color=LINE, linewidth=0.8)
    for name in dict.fromkeys(row["input"] for row in result.tables["lyapunov"]):
        rows = [row for row in result.tables["lyapunov"] if row["input"] == name]
        x, value, low, high = (np.array([r[c] for r in rows], float) for c in ("exponent", "value", "low", "high"))
        if name == "recorded":
            axis.plot(x + 1, value, color=REAL, linewidth=2, label=f"recorded episodes ({rows[0]['n']})", zorder=3)
            axis.fill_between(x + 1, low, high, color=REAL, alpha=0.3, linewidth=0)
        else:
            label = "still inputs" if name == "input 0" else None
            axis.plot(x + 1, value, color=HELD, linewidth=0.8, label=label)
    axis.set(
        xlabel="exponent, the largest first",
        ylabel="growth of a difference (nats a step)",
        title="Lyapunov exponents (below 0: differences of memory fade)",
    )
    axis.legend(frameon=False, fontsize=8)
    return figure


def draw(result: Result, store: RolloutStore, path: Path, slow_steps: float) -> None:
    """``points.png``, ``eigenvalues.png``, ``lyapunov.png``."""
    name = image_field(store)
    frames = [
        None if name is None or one["where"] is None
        else store.read_windows([f"obs/{name}"], np.array([one["where"]]), 1)[f"obs/{name}"][0, 0]
        for one in result.notes["inputs"]
    ]  # fmt: skip
    draw_points(result, frames).savefig(path / "points.png", dpi=110)
    draw_eigenvalues(result, slow_steps).savefig(path / "eigenvalues.png", dpi=110)
    draw_exponents(result).savefig(path / "lyapunov.png", dpi=110)


def main(config: DynamicsConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(0, inputs=config.inputs, burn_in=config.burn_in, seed=config.seed)
    cli.require(1, starts=config.starts, iterations=config.iterations, settle=config.settle, threads=config.threads)
    for flag, number in (("slow_speed", config.slow_speed), ("merge", config.merge)):
        if not number > 0:
            raise UserError(f"--{flag} {number}: above 0")
    if config.slow_steps < 1:
        raise UserError(f"--slow_steps {config.slow_steps}: at least 1")
    if config.lyapunov_steps <= config.burn_in:
        raise UserError(f"--lyapunov_steps {config.lyapunov_steps} must be above --burn_in {config.burn_in}")
    agent = load_agent(config.agent, device)
    if agent.config.recurrence == "none":
        raise UserError(f"{config.agent} has no recurrence (feed-forward); there is no memory to analyse")
    store, _, name = open_stores(config.rollouts, None)
    if fingerprint(agent) != name:
        raise UserError(f"{config.rollouts} is of agent {name}, --agent {config.agent} is {fingerprint(agent)}")
    given = {"agent": config.agent, "rollouts": config.rollouts, "behaviours": config.behaviours,
             "hidden_states": config.hidden_states}  # fmt: skip
    basis = None if config.hidden_states is None else load_basis(config.hidden_states, config.basis_kind, name)
    if config.behaviours is not None:
        check_made_from(config.behaviours, "rollouts", config.rollouts)
    precise = copy.deepcopy(agent).double()
    with store:
        recorded = read(agent, store)
        inputs = (
            typical(recorded, config.inputs, config.seed)
            if config.behaviours is None
            else of_behaviours(recorded, config.behaviours)
        )
        used = {k: v for k, v in given.items() if v is not None}
        with artefacts.new_run(config.out, STAGE, config, used, overwrite=config.overwrite) as run:
            result = analyse(precise, recorded, inputs, config, basis)
            for row in result.tables["points"]:
                row["action"] = agent.spec.action_names[row["action"]]
            result.save(run.path)
            draw(result, store, run.path, config.slow_steps)
            run.facts = {"agent": name}
            run.metrics |= result.scalars
    print(summary(result, config.settle, config.out))


def summary(result: Result, settle_steps: int, out: Path) -> str:
    """What a person wants to know, in a few lines."""
    s, points = result.scalars, result.tables["points"]
    lines = [
        f"{len(result.notes['inputs'])} still inputs: {s['fixed_points']['value']:.0f} fixed points, "
        f"{s['slow_points']['value']:.0f} slow ones"
    ]
    for number, one in enumerate(result.notes["inputs"]):
        mine = [row for row in points if row["input"] == number]
        words = [
            f"{row['kind']} {row['stability']} ({row['attractor']}; slowest mode {row['time_constant']:.1f} steps; "
            f"{row['settle_here']:.0%} of states get there in {settle_steps} steps)"
            for row in mine[:3]
        ]
        lines.append(f"  {one['name']}: {'; '.join(words) or 'none found'}" + (" ..." if len(mine) > 3 else ""))
    low, high = (f"{v:.3f}" if v is not None else "-" for v in s["lyapunov_driven"]["interval"])
    lines.append(
        f"  largest Lyapunov exponent along {s['lyapunov_driven']['n']} episodes: {s['lyapunov_driven']['value']:.3f} "
        f"[{low}, {high}] nats a step{few(s['lyapunov_driven']['n'])}"
    )
    return "\n".join([*lines, f"  {out}"])


if __name__ == "__main__":
    cli.run(DynamicsConfig, main, STAGE)
