"""A study of a scene: the agent's choice, its value and what becomes of it, against the scene's one variable.

Every value of the variable is shown on the same bases, in the same stances and with the same action noise, so that
curves differ by the variable alone; intervals have whole bases as their units.  V values, E bases, P stances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from core.artefacts import Result
from core.config import nearest
from core.contracts import Agent, EnvSpec, Intervention, UserError
from core.progress import bar
from core.roll import Simulator, action_noise
from core.stats import Estimate, between, in_text
from envs.procgen import ProcgenEnv
from generative.starts import started
from validation.paired.course import Measures, choices_of, is_share, quantities, unit_of
from validation.paired.simulated import SimulatedWorld
from validation.scenes.course import OUTCOMES, Played, SceneWorld
from validation.scenes.curves import Logistic, curve, difference, fit_isotonic, fit_logistic
from validation.scenes.starts import SceneStarts

PLAIN, SHIFTED = "as it is", "shifted"
FITS = ("none", "isotonic", "logistic")


@dataclass(frozen=True, kw_only=True)
class SceneOptions:
    """What ``study`` is asked."""

    choice: str
    settles: tuple[int, ...]
    horizon: int
    fit: str
    seed: int
    greedy: bool
    intervene: tuple[Intervention, ...] = ()


def check_choice(choice: str, spec: EnvSpec) -> str:
    """UserError where there is no such action."""
    known = choices_of(spec)
    if choice not in known:
        raise UserError(f"no action {choice!r}{nearest(choice, known)}; there are: {', '.join(known)}")
    return choice


Measured = dict[str, np.ndarray]  # quantity -> [V, E, P]


def study(
    agent: Agent, env: ProcgenEnv, starts: SceneStarts, options: SceneOptions, *,
    simulator: Simulator[Any] | None = None, device: torch.device,
) -> Result:  # fmt: skip
    """env: the real game with a slot a row of ``starts``.  Tables ``curves`` (a row a variant, settling, quantity and
    value), ``fits`` and ``outcomes``; arrays ``VARIANT/SETTLE/QUANTITY`` [V, E, P], NaN where the level ended before
    the agent chose; ``frames`` [V, ...] of the first base."""
    rng, words = np.random.default_rng(options.seed), choices_of(agent.spec)
    generator = torch.Generator().manual_seed(options.seed)
    shape = (len(starts), options.horizon + 1, agent.spec.n_actions)
    noise = action_noise(shape, generator, options.greedy)
    world = SceneWorld(agent, env, noise.to(device), words[options.choice],
                       1 if simulator is None else simulator.world.initial_frames)  # fmt: skip
    measures = Measures(words)
    variants = {PLAIN: ()} | ({SHIFTED: options.intervene} if options.intervene else {})
    result = Result(tables={"curves": [], "fits": []})
    with bar("scenes", len(variants) * len(options.settles) * len(starts.values), "scenes") as progress:
        for settle in options.settles:
            found: dict[str, Measured] = {}
            foretold: Measured = {}
            for variant, intervene in variants.items():
                played, told = [], []
                for value, states in zip(starts.values, starts.states, strict=True):
                    played.append(world.play(states, settle, starts.scene.beyond(value), intervene))
                    if simulator is not None and variant == PLAIN:
                        told.append(_foretold(simulator, world, measures, played[-1]))
                    progress.advance()
                found[variant] = _measured(played, starts, measures, options)
                if told:
                    foretold = _gathered(told, played, starts)
                if variant == PLAIN and "frames" not in result.arrays:
                    result.arrays["frames"] = np.stack([p.window["frames"][0, -1] for p in played])
                result.arrays |= {f"{variant}/{settle}/{q}": x for q, x in found[variant].items()}
            result.arrays |= {f"foretold/{settle}/{q}": x for q, x in foretold.items()}
            _tell(result, starts, settle, found, foretold, options, rng)
    claims = [{"headline": True, "text": text} for text in sentences(result, starts, options)]
    result.notes = {
        "scene": starts.scene.name, "says": starts.scene.says, "placeholder": starts.scene.placeholder,
        "choice": options.choice, "horizon": options.horizon, "settles": list(options.settles),
        "values": list(starts.values), "bases": len(starts.levels), "left_out": starts.left_out,
        "rows": len(starts), "claims": claims,
    }  # fmt: skip
    return result


def _measured(played: Sequence[Played], starts: SceneStarts, measures: Measures, options: SceneOptions) -> Measured:
    """Everything measured, [V, E, P]."""
    rows = []
    for p in played:
        row = {q: x.cpu().double().numpy() for q, x in quantities(p.course, measures).items()}
        row |= {f"{name}@{options.horizon}": (p.outcome_N == i).astype(float) for i, name in enumerate(OUTCOMES)}
        row[f"chosen:{options.choice}@{options.horizon}"] = p.took_N.astype(float)
        rows.append(row)
    return _gathered(rows, played, starts)


def _gathered(rows: Sequence[Mapping[str, np.ndarray]], played: Sequence[Played], starts: SceneStarts) -> Measured:
    """Rows of all values; NaN at starts that were lost at any value, so that all stay paired."""
    lost_N = np.any([p.lost_N for p in played], 0)
    shape = (len(starts.values), len(starts.levels), -1)
    return {q: np.where(lost_N, np.nan, np.stack([row[q] for row in rows])).reshape(shape) for q in rows[0]}


@torch.no_grad()
def _foretold(
    simulator: Simulator[Any], world: SceneWorld, measures: Measures, played: Played
) -> dict[str, np.ndarray]:
    """What the simulator says of the same starts, from the frames up to the choice."""
    device = world.noise_NTA.device
    window = {k: torch.from_numpy(v).to(device) for k, v in played.window.items()}
    begin = started(simulator.world, window)
    dreamed = SimulatedWorld(world.agent, played.state, world.noise_NTA, measures, simulator.world, begin)
    return {q: x[0] for q, x in dreamed.measure([None]).items()}


def is_zero_or_one(quantity: str) -> bool:
    """Whether a quantity of the real game is an event."""
    return is_share(quantity) or quantity.partition("@")[0].partition(":")[0] in (*OUTCOMES, "chosen")


def _unit(quantity: str) -> str:
    return "share of starts" if is_zero_or_one(quantity) else unit_of(quantity)


def _tell(
    result: Result, starts: SceneStarts, settle: int, found: Mapping[str, Measured], foretold: Measured,
    options: SceneOptions, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Rows of the tables."""
    x_V = np.array(starts.values, np.float64)
    k = options.horizon
    for variant, measured in found.items():
        for q, x in measured.items():
            if q.startswith("logit:"):
                continue
            of_values = curve(x, share=is_zero_or_one(q), rng=rng)
            told = curve(foretold[q], share=False, rng=rng) if variant == PLAIN and q in foretold and "@" in q else None
            moved = difference(found[PLAIN][q], x, rng, share=is_zero_or_one(q)) if variant == SHIFTED else None
            for v, e in enumerate(of_values):
                row: dict[str, Any] = {
                    "variant": variant, "settle": settle, "quantity": q, "unit": _unit(q),
                    "at": starts.values[v], "mean": e.value, "low": e.low, "high": e.high, "n": e.n,
                }  # fmt: skip
                if told is not None:
                    row |= {"foretold": told[v].value, "foretold_low": told[v].low, "foretold_high": told[v].high}
                if moved is not None:
                    row |= {"change": moved[v].value, "change_low": moved[v].low, "change_high": moved[v].high}
                result.tables["curves"].append(row)
            asked = (f"prob:{options.choice}", f"chosen:{options.choice}@{k}", f"passed@{k}")
            if q in asked and options.fit != "none" and len(x_V) > 2:
                result.tables["fits"] += _fits(variant, settle, q, x_V, x, of_values, options, rng)


def _fits(
    variant: str, settle: int, quantity: str, x_V: np.ndarray, x_VEP: np.ndarray, of_values: list[Estimate],
    options: SceneOptions, rng: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of ``fits``: of a logistic curve one (none where none fits; without a middle where it is known not to be a
    half at any of these values, or not known to rise or fall), of an isotonic one a value."""
    about = {"variant": variant, "settle": settle, "quantity": quantity, "fit": options.fit}
    if options.fit == "isotonic":
        rows = zip(x_V, fit_isotonic(x_V, of_values), strict=True)
        return [{**about, "at": float(v), "fitted": e.value, "low": e.low, "high": e.high, "n": e.n} for v, e in rows]
    found: Logistic | None = fit_logistic(x_V, x_VEP, rng)
    if found is None:
        return [about]
    m, w, s = found.middle, found.width, found.slope
    half = half_of(found, float(x_V.min()), float(x_V.max()))
    middle = {"middle": m.value, "middle_low": m.low, "middle_high": m.high} if half in ("inside", "open") else {}
    return [{
        **about, **middle, "width": w.value, "width_low": w.low, "width_high": w.high, "slope": s.value,
        "slope_low": s.low, "slope_high": s.high, "n": m.n, "half": half,
    }]  # fmt: skip


def half_of(found: Logistic, first: float, last: float) -> str:
    """Whether a curve is a half at a value between two: ``inside``, ``outside``, ``open``, or ``level`` where it is not
    known to rise or fall."""
    m, s = found.middle, found.slope
    if np.isnan([m.low, m.high, s.low, s.high]).any():
        return "open"
    if s.low <= 0 <= s.high:
        return "level"
    if first <= m.low and m.high <= last:
        return "inside"
    return "outside" if m.high < first or m.low > last else "open"


def sentences(result: Result, starts: SceneStarts, options: SceneOptions) -> list[str]:
    """What the curves say, a sentence each."""
    name, k, out = starts.scene.placeholder, options.horizon, []
    values = starts.values
    for settle in options.settles:
        seen = "at first sight" if settle == 0 else f"after {settle} steps of standing"
        for variant in dict.fromkeys(row["variant"] for row in result.tables["curves"]):
            for q, words in ((f"prob:{options.choice}", f"the probability of '{options.choice}' {seen}"),
                             (f"chosen:{options.choice}@{k}", f"the share that takes it within {k} steps, {seen},"),
                             (f"passed@{k}", f"the share that passes within {k} steps, {seen},")):  # fmt: skip
                rows = {row["at"]: row for row in result.tables["curves"]
                        if (row["variant"], row["settle"], row["quantity"]) == (variant, settle, q)}  # fmt: skip
                ends = [in_text(_estimate(rows[v]), ".2f", "bases") + f" at {name} = {v:g}"
                        for v in (values[0], values[-1])]  # fmt: skip
                text = f"{starts.scene.name}, {variant}: {words} is {ends[0]}" + f", {ends[1]}" * (len(values) > 1)
                out.append(text + _middle_in_words(result, variant, settle, q, name) + ".")
    return out


def _middle_in_words(result: Result, variant: str, settle: int, quantity: str, name: str) -> str:
    for row in result.tables["fits"]:
        if row["fit"] != "logistic" or (row["variant"], row["settle"], row["quantity"]) != (variant, settle, quantity):
            continue
        if "half" not in row:
            return "; no logistic curve fits"
        if "middle" not in row:
            return {"outside": "; it is not a half at any value between these",
                    "level": "; it is not known to rise or fall"}[row["half"]]  # fmt: skip
        at = f"; a half at {name} = {row['middle']:.2f}{between(row['middle_low'], row['middle_high'], '.2f')}"
        return at + " (whether that lies between these values is open)" * (row["half"] == "open")
    return ""


def _estimate(row: Mapping[str, Any]) -> Estimate:
    return Estimate(row["mean"], row["low"], row["high"], row["n"])


def estimates_of(result: Result, variant: str, settle: int, quantity: str) -> dict[float, Estimate]:
    """{value: estimate} of one curve."""
    return {
        cast(float, row["at"]): _estimate(row)
        for row in result.tables["curves"]
        if (row["variant"], row["settle"], row["quantity"]) == (variant, settle, quantity)
    }
