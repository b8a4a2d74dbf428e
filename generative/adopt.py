"""Bring a world model of your own:
``python -m generative.adopt my_world.py --weights w.pt --agent runs/mine --out runs/simulator``.

The module is checked against core.contracts.World and Inference on observations of the agent's world; what fails is one
line that names the rule.  The run directory is a simulator that every stage takes.  Adopting a module is the agreement
to run it on this machine (agents.adopt).
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m generative.adopt", file=sys.stderr)
    sys.exit(2)

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from agents.adopt import ROWS, observations
from agents.adopted import fill_or_none, read_weights
from agents.load import load_agent
from core import artefacts, config as cli
from core.contracts import EnvSpec, Shown, UserError
from core.directions import fingerprint
from core.plugins import read_source
from core.roll import Simulator, one_hot
from core.trees import Tree, leaves, rows_of
from generative.adopted import build, save_adopted, simulator_in

STAGE = "adopt_world"
STEPS = 3  # of the rolls that are compared
GREY = 0.5 / 255  # half a level of grey: what a frame may be off by rounding


@dataclass(frozen=True, kw_only=True)
class AdoptWorldConfig:
    """Check a world model of your own and make it a simulator that every stage takes (docs/bring-your-own.md)."""

    module: tyro.conf.Positional[Path] = Path("my_world.py")
    """.py file with make_world(spec)"""
    weights: Path | None = None
    """.safetensors or a state dict (.pt, .pth); none: a world of rules, which has no tensors"""
    agent: Path = Path("runs/agent")
    """run directory of the agent that is studied in it"""
    out: Path = Path("runs/simulator")
    """run directory to write"""
    seed: int = 0
    """seed of the observations that it is checked on"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def broken(rule: str, what: str) -> UserError:
    """One line that names the rule."""
    return UserError(f"{rule}: {what} (docs/bring-your-own.md, A simulator)")


def called(what: str, run: Callable[[], Any]) -> Any:
    """What a user's function gives.  Raises UserError."""
    try:
        return run()
    except Exception as error:  # whatever a user's code raises
        raise broken("calls", f"{what} fails: {type(error).__name__}: {' '.join(str(error).split())}") from error


def check(simulator: Simulator[Any], window: Mapping[str, Tensor]) -> list[str]:
    """UserError, one line that names the rule, unless the world keeps core.contracts.World and Inference; else what the
    user is to know of it, a sentence each.

    window: observations [ROWS, I, ...] of its world.  In eval mode, on the CPU.
    """
    world = simulator.world
    inferred = called("infer", lambda: world.infer(window))
    if not isinstance(inferred, tuple) or len(inferred) != 2:
        raise broken("shapes", "infer must give (mean, log_std)")
    for name, x in zip(("infer's mean", "infer's log_std"), inferred, strict=True):
        _shape(name, x, (ROWS, world.latent_size))
    z = called("normalise", lambda: world.normalise(inferred[0]))
    _shape("normalise", z, (ROWS, world.latent_size))
    z = z.detach()
    if not torch.allclose(world.normalise(z), z, atol=1e-5):
        raise broken("latents", "normalise is not idempotent")
    state, shown = _shown(world, "start", called("start", lambda: world.start(z, None)))
    action = one_hot(_actions(world.spec), world.spec.parts, z)
    after, then = _shown(world, "step", called("step", lambda: world.step(state, action, None)))
    forms = [[(x.shape, x.dtype) for x in leaves(tree)] for tree in (state, after)]
    if forms[0] != forms[1]:
        raise broken("trees", "step gives a state of another form than start")
    _check_course(world, z, action)
    _check_determinism(world, z, state, action, (after, then))
    _check_rows(world, z, state, action, then)
    notes = _check_gradients(world, z)
    _shape("observe", called("observe", lambda: _observed(world, window)), (ROWS, 1, shown.features_BD.shape[1]))
    memory = called("memory", lambda: simulator.remembered(z))
    like = simulator.agent.initial(ROWS)
    try:
        same = all(x.shape == y.shape for x, y in zip(leaves(memory), leaves(like), strict=True))
    except (TypeError, ValueError):
        same = False
    if not same:
        raise broken("memory", "memory(z) does not give a state of this agent")
    return notes


def _actions(spec: EnvSpec) -> Tensor:
    rows = [torch.arange(ROWS) % n for n in spec.parts]
    return rows[0] if len(rows) == 1 else torch.stack(rows, 1)


def _observed(world: Any, window: Mapping[str, Tensor]) -> Tensor:
    action = _actions(world.spec)[:, None]
    out: Tensor = world.observe(window, action, torch.ones(ROWS, 1, dtype=torch.bool))
    return out


def _shape(name: str, x: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(x, Tensor) or x.shape != shape or x.dtype != torch.float32:
        got = f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise broken("shapes", f"{name} is {got}; it must be float32 {list(shape)}")
    if not x.isfinite().all():
        raise broken("finite numbers", f"{name} has NaN or infinite values")


def _shown(world: Any, name: str, out: Any, rows: int = ROWS) -> tuple[Tree, Shown]:
    if not isinstance(out, tuple) or len(out) != 2 or not isinstance(out[1], Shown):
        raise broken("shapes", f"{name} must give (state, core.contracts.Shown)")
    state, shown = out
    try:
        if any(x.ndim == 0 or len(x) != rows for x in leaves(state)):
            raise broken("trees", f"the state of {name} has tensors whose first axis is not the batch")
    except TypeError as error:
        raise broken("trees", f"the state of {name} must be nested tuples of tensors ({error})") from None
    if not isinstance(shown.obs, Mapping):
        raise broken("shapes", f"what {name} shows is {type(shown.obs).__name__}; it must be a dict of fields")
    if set(shown.obs) != set(world.spec.obs):
        raise broken("shapes", f"{name} shows {sorted(shown.obs)}; the world has {sorted(world.spec.obs)}")
    for field, about in world.spec.obs.items():
        _shape(f"what {name} shows of {field}", x := shown.obs[field], (rows, *about.shape))
        if about.means == "image" and ((x < -GREY) | (x > 1 + GREY)).any():
            low, high = float(x.min()), float(x.max())
            raise broken("frames", f"what {name} shows of {field} goes from {low:.3g} to {high:.3g}; frames are in "
                         "[0, 1] (divide by 255, or clamp them)")  # fmt: skip
    _shape(f"{name}'s reward", shown.reward_B, (rows,))
    _shape(f"{name}'s ending", shown.ending_B, (rows,))
    if ((shown.ending_B < 0) | (shown.ending_B > 1)).any():
        raise broken("shapes", f"{name}'s ending must be a probability")
    if shown.paid_B2 is not None:
        _shape(f"{name}'s chance of a reward", shown.paid_B2, (rows, 2))
        if ((shown.paid_B2 < 0) | (shown.paid_B2 > 1)).any():
            raise broken("shapes", f"{name}'s chances of a reward must be probabilities")
    features = shown.features_BD
    width = features.shape[-1] if isinstance(features, Tensor) and features.ndim else 1
    _shape(f"{name}'s features", features, (rows, width))
    return state, shown


def _told(shown: Shown) -> dict[str, Tensor]:
    """All that is told of a step, by its name."""
    told = {f"what is shown of {name}": x for name, x in shown.obs.items()}
    told |= {"the reward": shown.reward_B, "the ending": shown.ending_B, "the features": shown.features_BD}
    return told | ({} if shown.paid_B2 is None else {"the chance of a reward": shown.paid_B2})


def _numbers(out: tuple[Tree, Shown]) -> list[Tensor]:
    shown = out[1]
    told = [] if shown.paid_B2 is None else [shown.paid_B2]
    return [*leaves(out[0]), *shown.obs.values(), shown.reward_B, shown.ending_B, shown.features_BD, *told]


def _noise(world: Any) -> Tree:
    """The noise of a step, the same at every call."""
    noise = called("draw_noise", lambda: world.draw_noise(ROWS, torch.Generator().manual_seed(0)))
    try:
        list(leaves(noise))
    except TypeError as error:
        raise broken(
            "trees", f"draw_noise must give nested tuples of tensors, () where there is no noise ({error})"
        ) from None
    return noise


def _check_course(world: Any, z: Tensor, action: Tensor) -> None:
    """What is shown, paid and ended later on, and where there is noise, has to be as at the first step."""
    for drawn, said in ((False, ""), (True, " with noise")):
        noise = _noise(world) if drawn else None
        state, _ = _shown(world, f"start{said}", called(f"start{said}", lambda n=noise: world.start(z, n)))  # type: ignore[misc]
        for t in range(1, STEPS + 1):
            name = f"step {t}{said}"
            state, _ = _shown(world, name, called(name, lambda s=state, n=noise: world.step(s, action, n)))  # type: ignore[misc]


def _check_determinism(world: Any, z: Tensor, state: Tree, action: Tensor, first: tuple[Tree, Shown]) -> None:
    for name, runs in (
        ("without noise", [first, world.step(state, action, None)]),
        ("with the same noise", [world.step(state, action, _noise(world)) for _ in range(2)]),
    ):
        if not all(torch.equal(a, b) for a, b in zip(*map(_numbers, runs), strict=True)):
            raise broken("purity", f"the same step {name} gives another result the second time")


def _check_rows(world: Any, z: Tensor, state: Tree, action: Tensor, whole: Shown) -> None:
    for b in range(ROWS):
        row = slice(b, b + 1)
        given = called("step of one row", lambda r=row: world.step(rows_of(state, r), action[r], None))  # type: ignore[misc]
        _, alone = _shown(world, "step of one row", given, rows=1)
        for name, x in _told(alone).items():
            other = _told(whole).get(name)
            if other is None or not torch.allclose(x, other[row], rtol=1e-3, atol=1e-4):
                raise broken("rows", f"a row alone gives other numbers than in a batch ({name}): rows must not touch "
                             "each other")  # fmt: skip


def _check_gradients(world: Any, z: Tensor) -> list[str]:
    """UserError where a gradient is missing, not finite, or 0 though what it is of does something; sentences on what
    does nothing at these latents."""
    z = z.clone().requires_grad_()
    action = one_hot(_actions(world.spec), world.spec.parts, z).requires_grad_()
    state, shown = world.start(z, None)
    first = sum(x.square().sum() for x in shown.obs.values())
    later: Any = 0.0
    seen = [shown.obs]
    for _ in range(STEPS):
        state, shown = world.step(state, action, None)
        seen.append(shown.obs)
        later = later + sum(x.square().sum() for x in shown.obs.values()) + shown.reward_B.sum()
    notes = []
    for out, source, what, does, nothing in (
        (first, z, "the latent", _latents_show, "latents change nothing of the first observations"),
        (later, action, "the action", _actions_show,
         f"actions change nothing that is shown or paid within {STEPS} steps in the states that were tried"),
    ):  # fmt: skip
        grads = torch.autograd.grad(out, source, retain_graph=True, allow_unused=True) if _open(out) else (None,)
        if grads[0] is None:
            raise broken("gradients", f"none from observations to {what} (a no_grad or detach on the way, or never "
                         "used? let it enter, by 0 times it where it does nothing)")  # fmt: skip
        if not grads[0].isfinite().all():
            raise broken("gradients", f"those from observations to {what} are NaN or infinite")
        if grads[0].any():
            continue
        if does(world, z.detach()):
            raise broken("gradients", f"those from observations to {what} are 0, though another one changes what is "
                         "shown (rounding or a threshold on the way?)")  # fmt: skip
        notes.append(f"{nothing}: gradients to {what} are 0 there")
    closed = [name for name in world.spec.obs if _closed([obs[name] for obs in seen], (z, action))]
    if closed and len(closed) < len(world.spec.obs):
        notes.append(
            f"no gradient runs through {', '.join(map(repr, closed))} (rounded, or a threshold or detach on the way?): "
            "gradients leave out what the agent learns of world and actions by it, runs do not; where it should be in "
            "them, give it the gradient of a smooth form (straight-through)"
        )
    return notes


def _closed(shown: Sequence[Tensor], sources: tuple[Tensor, ...]) -> bool:
    """Whether a field, as it is shown step by step, changes but has no gradient to any of the sources."""
    x = torch.stack(list(shown))
    if torch.equal(x, x[:1, :1].expand_as(x)):
        return False
    if not x.requires_grad:
        return True
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    grads = torch.autograd.grad((weight * x).sum(), sources, retain_graph=True, allow_unused=True)
    return not any(g is not None and g.any() for g in grads)


@torch.no_grad()
def _latents_show(world: Any, z: Tensor) -> bool:
    """Whether other latents begin with other observations."""
    other = world.normalise(z + torch.randn(z.shape, generator=torch.Generator().manual_seed(0)))
    (_, one), (_, two) = world.start(z, None), world.start(other, None)
    return not all(torch.equal(one.obs[k], two.obs[k]) for k in one.obs)


@torch.no_grad()
def _actions_show(world: Any, z: Tensor) -> bool:
    """Whether any choice, held ``STEPS`` steps, changes an observation or a reward.  Of several parts one is changed at
    a time."""
    parts = world.spec.parts

    def seen(choices: list[int]) -> list[Tensor]:
        action = torch.tensor(choices).expand(ROWS, -1)
        done = one_hot(action if len(parts) > 1 else action[:, 0], parts, z)
        state, out = world.start(z, None)[0], []
        for _ in range(STEPS):
            state, shown = world.step(state, done, None)
            out += [*shown.obs.values(), shown.reward_B]
        return out

    like = seen([0] * len(parts))
    for p, count in enumerate(parts):
        for choice in range(1, count):
            held = seen([choice if q == p else 0 for q in range(len(parts))])
            if not all(torch.equal(a, b) for a, b in zip(like, held, strict=True)):
                return True
    return False


def _open(out: Any) -> bool:
    return isinstance(out, Tensor) and out.requires_grad


def windows(spec: EnvSpec, frames: int, seed: int) -> dict[str, Tensor]:
    """Observations [ROWS, frames, ...] of the world, actions drawn at random (steps apart: for a check)."""
    some = observations(spec, seed)
    order = np.arange(frames) % len(some)
    return {k: torch.stack([some[i][k] for i in order], 1) for k in some[0]}


def main(config: AdoptWorldConfig) -> None:
    torch.set_num_threads(config.threads)
    cli.require(0, seed=config.seed)
    inputs = artefacts.Inputs({"agent": config.agent})
    agent = load_agent(config.agent)
    source, tensors = read_source(config.module), None if config.weights is None else read_weights(config.weights)
    source.agree()
    module = source.run(("make_world",))
    world = build(module, source, agent.spec)
    fill_or_none(world, "world", module, tensors, config.weights, config.module)
    simulator = simulator_in(world, agent)
    notes = check(simulator, windows(agent.spec, int(world.initial_frames), config.seed))
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        save_adopted(world, source, run.path, config.agent)
        run.facts = {"agent": fingerprint(agent), "simulator": fingerprint(simulator)}
        run.record("parameters", artefacts.parameter_count(world), "parameters")
    said = "with a memory of the agent's" if simulator.memory is not None else "the agent begins without a memory"
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"adopted {config.module} for {agent.spec.env_id} ({said}; SHA-256 {source.sha256[:16]}): {config.out}")


if __name__ == "__main__":
    cli.run(AdoptWorldConfig, main, STAGE)
