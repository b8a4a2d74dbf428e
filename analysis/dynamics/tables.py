"""Fixed points, modes and exponents of every input as tables and scalars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.dynamics.config import DynamicsConfig
from analysis.dynamics.fixed_points import FIXED, apart, distinct, on_whole, search, settle
from analysis.dynamics.inputs import Recorded, Still
from analysis.dynamics.lyapunov import lyapunov, of_settled
from analysis.dynamics.modes import Modes, attractor, modes, period, persistence, stability, time_constant
from analysis.dynamics.recurrence import Recurrence
from analysis.dynamics.retention import Left
from core.artefacts import Result
from core.contracts import UserError
from core.directions import Basis
from core.episodes import spread_over_episodes
from core.progress import bar
from core.stats import between, bootstrap_mean, few, ratios, share_of
from core.trees import flatten
from core.words import counted

SHOWN = (4, 16)  # steps after which what is left of a difference is said


def analyse(
    memory: Recurrence, recorded: Recorded, inputs: Sequence[Still], config: DynamicsConfig, basis: Basis | None = None
) -> Result:
    """Fixed points and their modes under every constant input, and the exponents.

    Arrays: ``points`` [P, H], ``eigenvalues`` complex [P, H], ``states`` [M, H] (recorded, for drawing), ``std``;
    ``lyapunov_driven`` [E, H] an episode each, ``lyapunov_still`` [inputs, starts, H], ``left`` [E, T+1].  Tables
    ``points`` (a row a point), ``modes`` (a row a point and slow or leading mode), ``lyapunov`` (a row an exponent) and
    ``left`` (of a difference, a row a step), with intervals.
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
            found = on_whole(memory, e_SE, search(memory, e_SE, h_SH, std_H, config.iterations), std_H)
            ended = settle(memory, e_SE, h_SH, config.settle)
            use = torch.nonzero(found.settled_B & (found.speed_B < config.slow_speed))[:, 0]
            in_vain += len(h_SH) - len(use)
            kept = use[distinct(found.h_BH[use], found.speed_B[use], std_H, config.merge)].tolist()
            gap_SP = ((ended[:, None] - found.h_BH[kept]) / std_H).square().mean(2).sqrt()
            for at, k in enumerate(kept):
                _, jacobian = memory.with_jacobian(one.e_E[None], found.h_BH[k][None])
                mode = modes(jacobian[0].cpu().numpy())
                near = (gap_SP.argmin(1) == at) & (gap_SP[:, at] < config.merge)
                row = point_row(memory, one, found.h_BH[k], float(found.speed_B[k]), mode, recorded, std_H, config)
                share = share_of(near.cpu().numpy(), recorded.units[chosen])
                row |= {"settle_here": share.value, "settle_here_low": share.low, "settle_here_high": share.high}
                result.tables["points"].append({"point": len(points), "input": number, "name": one.name, **row})
                result.tables["modes"] += mode_rows(
                    len(points), memory, one, found.h_BH[k], mode, recorded, std_H, config, basis
                )
                points.append(found.h_BH[k].cpu().numpy())
                values.append(mode.value_M)
            still.append(of_settled(memory, one.e_E, ended, std_H, config.lyapunov_steps, config.burn_in))
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
    driven(result, memory, recorded, config, rng)
    for number, (each, steps) in enumerate(still):
        put_exponents(result, f"input {number}", each, steps, recorded.units[chosen], rng)
    fixed = [row for row in result.tables["points"] if row["kind"] == "fixed"]
    result.scalar("fixed_points", len(fixed), f"points in {len(inputs)} constant inputs")
    result.scalar("slow_points", len(points) - len(fixed), f"points in {len(inputs)} constant inputs")
    result.scalar("searches_in_vain", in_vain, f"of {len(inputs) * len(h_SH)} searches, that came to no point")
    return result


def point_row(
    memory: Recurrence, one: Still, h_H: Tensor, speed: float, mode: Modes, recorded: Recorded, std_H: Tensor,
    config: DynamicsConfig,
) -> dict[str, Any]:  # fmt: skip
    """What is said of one point: what it is, how near the recorded states it lies, and what the agent does there."""
    with torch.no_grad():
        logits, value = memory.heads(h_H[None])
    nearest = float(apart(recorded.h_NH, h_H, std_H).min())
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
        "action": [int(part.argmax()) for part in logits[0].split(list(memory.agent.spec.parts))],
        "value": float(value[0]),
    }


OUTSIDE = 1e-9  # part of a mode of length 1 that lies in h, below which it is rounding error
MODES = 8  # rows of the table ``modes`` a point, at least as many as are slow or grow


def mode_rows(
    number: int, memory: Recurrence, one: Still, h_H: Tensor, mode: Modes, recorded: Recorded, std_H: Tensor,
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
            "left": persistence(memory, one.e_E, h_H, mode, m, recorded.h_NH, int(config.slow_steps)) if real else None,
            "left_linear": float(value.real ** int(config.slow_steps)) if real else None,
        }  # fmt: skip
        if basis is not None:
            row["directions"] = along(hidden_part(memory, mode.right_HM[:, m]), basis)
        rows.append(row)
    return rows


def hidden_part(memory: Recurrence, right_S: np.ndarray) -> np.ndarray:
    """The part of a (complex) mode that lies in h."""
    parts_2S = torch.from_numpy(np.stack([right_S.real, right_S.imag])).to(flatten(memory.state))
    parts_2H = memory.hidden(parts_2S).cpu().numpy()
    out: np.ndarray = parts_2H[0] + 1j * parts_2H[1]
    return out


def along(right_H: np.ndarray, basis: Basis, most: int = 3) -> str:
    """The directions that a mode lies along, as in ``ica:3 (0.81), ica:7 (0.35)``: |cosine| in z-scored states;
    none of a mode outside h."""
    if np.linalg.norm(right_H) < OUTSIDE:
        return ""
    std_H = basis.std_H.double().cpu().numpy()
    lift_KH = basis.lift_KH.double().cpu().numpy()
    z = right_H / std_H
    cosine_K = np.abs(lift_KH @ z) / (np.linalg.norm(lift_KH, axis=1) * np.linalg.norm(z))
    return ", ".join(f"{basis.names[i]} ({cosine_K[i]:.2f})" for i in np.argsort(-cosine_K)[:most])


def driven(
    result: Result, memory: Recurrence, recorded: Recorded, config: DynamicsConfig, rng: np.random.Generator
) -> None:
    """Exponents along recorded episodes: the same frames, two memories that differ a little.  Episodes with fewer than
    ``burn_in`` + H/4 steps are too short to say anything and are left out."""
    episode_N = recorded.index_N2[:, 0]
    ids, first, count = np.unique(episode_N, return_index=True, return_counts=True)
    need = config.burn_in + max(4, recorded.h_NH.shape[1] // 4)
    use = count > need
    if not use.any():
        room = int(count.max()) - 1 - (need - config.burn_in)
        lower = (
            f", or give --burn_in {room} or less" if room >= 0 else f" ({need - config.burn_in} even with --burn_in 0)"
        )
        raise UserError(
            f"no episode has more than {need} steps, which the Lyapunov exponents need; record longer ones{lower}"
        )
    length = np.minimum(count[use] - 1, config.lyapunov_steps)  # the first recorded state is where it starts
    rows = first[use, None] + 1 + np.minimum(np.arange(length.max()), length[:, None] - 1)
    left = Left(recorded.h_NH[first[use]])
    each, steps = lyapunov(memory, recorded.e_NE[rows], recorded.h_NH[first[use]], length, config.burn_in, left)
    result.arrays["lyapunov_driven"], result.arrays["lyapunov_steps"] = each, steps
    result.tables["lyapunov"] = []
    put_exponents(result, "recorded", each, steps, recorded.units[first[use]], rng)
    top = result.tables["lyapunov"][0]
    result.scalar("lyapunov_driven", top["value"], "nats a step, largest", top["n"], (top["low"], top["high"]))
    put_left(result, left.left_BT, recorded.units[first[use]], rng)
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


def put_left(result: Result, left_BT: np.ndarray, unit_B: np.ndarray, rng: np.random.Generator) -> None:
    """Table ``left``: the mean over episodes that last as long, with intervals over whole units; scalar ``memory``: the
    first step at which 1/e or less is left (of the ends of the intervals: its own), None where none is reached."""
    result.arrays["left"] = left_BT
    result.tables["left"] = []
    for t, left_B in enumerate(left_BT.T):
        there = np.isfinite(left_B)
        if t and there.any():
            e = bootstrap_mean(left_B[there], unit_B[there], rng=rng)
            result.tables["left"].append(
                {"steps": t, "left": e.value, "low": max(e.low, 0.0), "high": e.high, "n": e.n}
            )

    def faded(key: str) -> float:
        return next((row["steps"] for row in result.tables["left"] if row[key] <= 1 / math.e), math.nan)

    unit = "steps until 1/e of a small difference of memory is left"
    result.scalar("memory", faded("left"), unit, result.tables["left"][0]["n"], (faded("low"), faded("high")))


def left_in_words(result: Result) -> str:
    """How much of a difference is left, and when 1/e of it."""
    rows, memory = {row["steps"]: row for row in result.tables["left"]}, result.scalars["memory"]
    some = [k for k in SHOWN if k in rows] or [max(rows)]
    shares = " and ".join(
        f"{rows[k]['left']:.0%}{between(rows[k]['low'], rows[k]['high'], '.0%')} after {k}" for k in some
    )
    n = rows[some[0]]["n"]
    last = f"not down to 1/e within {max(rows)} steps"
    if memory["value"] is not None:
        last = f"down to 1/e after {memory['value']:.0f}{between(*ends_of(memory), '.0f')} steps"
    return f"of a small difference of memory is left {shares} steps (any direction alike, n = {n}{few(n)}); {last}"


def ends_of(scalar: Mapping[str, Any]) -> tuple[float | None, float | None]:
    low, high = scalar["interval"]
    return low, high


def summary(result: Result, settle_steps: int, out: Path) -> str:
    """What a person wants to know, in a few lines."""
    s, points = result.scalars, result.tables["points"]
    lines = [
        f"{counted(len(result.notes['inputs']), 'constant input')}: "
        f"{counted(int(s['fixed_points']['value']), 'fixed point')}, {s['slow_points']['value']:.0f} slow"
    ]
    for number, one in enumerate(result.notes["inputs"]):
        mine = [row for row in points if row["input"] == number]
        words = [
            f"{row['kind']} {row['stability']} ({row['attractor']}; slowest mode {row['time_constant']:.1f} steps; "
            f"{row['settle_here']:.0%} of states get there in {settle_steps} steps)"
            for row in mine[:3]
        ]
        lines.append(f"  {one['name']}: {'; '.join(words) or 'none found'}" + (" ..." if len(mine) > 3 else ""))
    lines.append(f"  {left_in_words(result)}")
    top = s["lyapunov_driven"]
    lines.append(
        f"  largest Lyapunov exponent along {counted(top['n'], 'episode')}: {top['value']:.3f}"
        f"{between(*ends_of(top), '.3f')} nats a step{few(top['n'])}"
    )
    return "\n".join([*lines, f"  {out}"])
