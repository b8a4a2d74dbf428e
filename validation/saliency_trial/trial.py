"""A whole trial: starts, what removing each object does, what saliency says of it, and how well the two agree.

N starts, O objects, L layers of boxes, P agents with shuffled weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from analysis.shared.randomised import randomised
from core.artefacts import Result
from core.contracts import Agent, VecEnv
from core.roll import Simulator
from core.stats import bootstrap_mean
from core.trees import Tree, leaves
from envs.procgen_state import state_of
from validation.paired.course import Actions, is_late, unit_of
from validation.saliency_trial import methods
from validation.saliency_trial.config import SaliencyTrialConfig
from validation.saliency_trial.methods import BEHIND, DEEPLIFT, MEAN, Boxes, Said, as_floats
from validation.saliency_trial.objects import box_of
from validation.saliency_trial.readings import AtOnce, InWorld, Reading
from validation.saliency_trial.removal import POLICY, Changes, removed, source_of, with_policy
from validation.saliency_trial.scores import Claim, score_rows
from validation.saliency_trial.starts import Scenes, collect

COLLECTORS = 64  # slots in which starts are looked for
SLOTS = 64  # in which they are played on
ALONE, HELD, INFERRED = "", "start held", "start inferred"  # how the simulator has a part in a method
AREA, NEAR = "area of the box", "nearness to the agent"


def trial(
    agent: Agent, simulator: Simulator[Any] | None, make_env: Callable[[int], VecEnv], config: SaliencyTrialConfig,
    device: torch.device,
) -> Result:  # fmt: skip
    """Everything; ``make_env(slots)`` makes the real world.  Raises UserError where such starts are rare."""
    env = make_env(min(config.starts, COLLECTORS))
    try:
        scenes = collect(
            agent, env, config.starts, objects=config.objects, latest=config.latest_start, seed=config.seed,
            initial_frames=1 if simulator is None else simulator.world.initial_frames, device=device,
        )  # fmt: skip
    finally:
        env.close()
    actions = agent.spec.distinct_actions()
    generator = torch.Generator().manual_seed(config.seed)
    shape = (config.draws, len(scenes.starts), config.horizon + 1, agent.spec.n_actions)
    noise_DNTA = -torch.empty(shape).exponential_(generator=generator).log().to(device)  # Gumbel
    most = 2 + max(map(len, scenes.items))
    env = make_env(max(most, min(SLOTS, most * len(scenes.starts))))
    try:
        changes = removed(agent, env, scenes, noise_DNTA, actions)
    finally:
        env.close()
    frames = next(iter(scenes.starts.window.values()))[:, -1]
    of_O = np.repeat(np.arange(len(scenes.starts)), [len(items) for items in scenes.items])
    states = [state_of(s) for s in scenes.starts.states]
    own = [box_of(states[n], item, frames.shape[1]) for n, items in enumerate(scenes.items) for item in items]
    readings: dict[str, Reading] = {ALONE: AtOnce(scenes.starts.before, actions)}
    if simulator is not None:
        window = {k: as_floats(v, device) for k, v in scenes.starts.window.items()}
        some = noise_DNTA[: config.world_draws]
        for name, inferred in ((HELD, False), (INFERRED, True)):
            readings[name] = InWorld(simulator.world, window, scenes.starts.before, actions, some, inferred)
    result = tried(
        agent, readings, scenes.starts.before, frames, np.array(own), of_O, changes, nearness(scenes), actions, config
    )
    about(result, scenes, changes)
    return result


def nearness(scenes: Scenes) -> np.ndarray:
    """Minus the distance from the agent's centre to that of each object, in cells, [O]."""
    out = []
    for snapshot, items in zip(scenes.starts.states, scenes.items, strict=True):
        agent = state_of(snapshot).agent
        out += [-float(np.hypot(item.x - agent["x"], item.y - agent["y"])) for item in items]
    return np.array(out)


def tried(
    agent: Agent, readings: Mapping[str, Reading], before: Tree, frames: np.ndarray, own_O4: np.ndarray,
    of_O: np.ndarray, changes: Changes, near_O: np.ndarray, actions: Actions, config: SaliencyTrialConfig,
) -> Result:  # fmt: skip
    """What every method says of the objects, scored.  readings: how a frame is read, ALONE always; frames: uint8
    [N, H, W, C]; of: the start of each object, ascending."""
    rng = np.random.default_rng(config.seed)
    boxes = Boxes(of_O, methods.random_boxes(own_O4, frames.shape[1], config.boxes, rng))
    truth = with_policy(changes.once) | with_policy({q: v.mean(0) for q, v in changes.late.items()})
    ceiling: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    if config.draws > 1:
        halves = [with_policy({q: v[h::2].mean(0) for q, v in changes.late.items()}) for h in range(2)]
        ceiling = {q: (halves[0][q], halves[1][q]) for q in halves[0]}
    said = of_agent(agent, readings, before, frames, boxes, changes.frames, actions, config)
    alone = Boxes(of_O, boxes.at_LO4[:1])
    shuffled = [
        of_agent(randomised(agent, config.seed + n), readings, before, frames, alone, changes.frames, actions, config,
                 f" (shuffled weights, {n + 1} of {config.shuffles})")
        for n in range(config.shuffles)
    ]  # fmt: skip
    claims = claims_of(said, shuffled, list(truth))
    baselines = {AREA: boxes.area_O.astype(np.float64), NEAR: near_O}
    result = Result()
    result.tables["scores"] = score_rows(claims, baselines, truth, of_O, ceiling, config.smallest, rng)
    for row in result.tables["scores"]:
        row["unit"] = "rank correlation; share of starts"
    result.arrays |= {"frames": frames, "boxes": own_O4, "of": of_O, "edited_frames": changes.frames}
    result.arrays |= {f"true {q}": v for q, v in truth.items()}
    for c in claims:
        result.arrays[f"said {c.quantity} by {c.method}" + (f", {c.world}" if c.world else "")] = c.size
    result.notes |= {
        "quantities": {q: POLICY_UNIT if q.startswith(POLICY) else unit_of(q) for q in truth},
        "twin": changes.twin, "horizon": config.horizon, "starts": len(frames), "objects": len(of_O),
        "smallest": config.smallest,
        "actions": {name: [agent.spec.action_names[i] for i in ids] for name, ids in actions.items()},
    }  # fmt: skip
    return result


POLICY_UNIT = "total variation of the probabilities of distinct actions"


def of_agent(
    agent: Agent, readings: Mapping[str, Reading], before: Tree, frames: np.ndarray, boxes: Boxes, edited: np.ndarray,
    actions: Actions, config: SaliencyTrialConfig, whose: str = "",
) -> dict[tuple[str, str], Said]:  # fmt: skip
    """{(method, world): what it says of all boxes}."""
    device = next(leaves(before)).device
    frames_N = as_floats(frames, device)
    out: dict[tuple[str, str], Said] = {}
    for world, read in readings.items():
        label = (f"simulator, {world}" if world else "the agent alone") + whose
        if "gradient" in config.methods:
            points = config.world_integrated_steps if world else config.integrated_steps
            found = methods.by_gradients(read, agent, frames_N, boxes, points, config.batch_size, f"gradients, {label}")
            out |= {(name, world): x for name, x in found.items()}
        if "deeplift" in config.methods and not world:
            out[DEEPLIFT, world] = methods.by_deeplift(agent, before, frames_N, boxes, actions, read)
        for method in (MEAN, BEHIND) if "occlusion" in config.methods else ():
            fill = methods.filled(method, boxes, edited)
            # A random box has nothing behind it: its layers are those of the mean.
            layers = len(boxes.at_LO4) if method == MEAN else 1
            found_here = methods.by_occlusion(
                read, agent, frames, boxes, fill, layers, config.batch_size, f"{method}, {label}", device
            )
            if method == BEHIND:
                at_random = {q: x[1:] for q, x in out[MEAN, world].size.items()}
                found_here = found_here._replace(
                    size={q: np.concatenate([x, at_random[q]]) for q, x in found_here.size.items()}
                )
            out[method, world] = found_here
    return out


def claims_of(
    said: Mapping[tuple[str, str], Said], shuffled: Sequence[Mapping[tuple[str, str], Said]], names: Sequence[str]
) -> list[Claim]:
    """A claim a method and quantity: of the agent alone also for late quantities, of a world only for those."""
    claims = []
    for (method, world), x in said.items():
        sizes, controls = with_policy(x.size), [with_policy(other[method, world].size) for other in shuffled]
        for q in names:
            source = source_of(q) if world == ALONE else q
            if source in sizes:
                change = x.change[source][0] if source in x.change else None
                claims.append(Claim(
                    method, world, q, sizes[source][0], change,
                    sizes[source][1:] if len(sizes[source]) > 1 else None,
                    np.stack([c[source][0] for c in controls]) if controls else None,
                    given=(method, world) == (BEHIND, ALONE) and not is_late(q),
                ))  # fmt: skip
    return claims


def about(result: Result, scenes: Scenes, changes: Changes) -> None:
    """What there was to find: how much removing an object of each kind changes, into the table ``objects``."""
    kinds = np.array([item.kind for items in scenes.items for item in items])
    of_O = result.arrays["of"]
    result.notes["kinds"] = kinds.tolist()
    result.notes["ages"] = scenes.starts.age_N.tolist()
    shown = (changes.frames != result.arrays["frames"][of_O]).any(-1).reshape(len(of_O), -1).sum(1)
    rows = []
    for kind in dict.fromkeys(kinds.tolist()):
        here = kinds == kind
        row: dict[str, Any] = {
            "kind": kind, "objects": int(here.sum()), "starts": len(np.unique(of_O[here])),
            "pixels changed": float(shown[here].mean()), "unseen": int((shown[here] == 0).sum()),
        }  # fmt: skip
        for q in result.notes["quantities"]:
            if not q.startswith("prob:"):
                e = bootstrap_mean(np.abs(result.arrays[f"true {q}"][here]), of_O[here], rng=np.random.default_rng(0))
                row |= {f"|{q}|": e.value, f"|{q}| low": e.low, f"|{q}| high": e.high}
        rows.append(row)
    result.tables["objects"] = rows
