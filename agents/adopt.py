"""Bring an agent of your own: ``python -m agents.adopt my_agent.py --weights w.safetensors --env procgen/coinrun``.

The module is checked against core.contracts.Agent on observations of its world; what fails is one line that names the
rule.  The run directory holds a copy of the module with its hash, and every stage takes it.  Adopting a module is the
agreement to run it on this machine.  For a run that came from elsewhere: ``python -m agents.adopt FILE --trust HASH``.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m agents.adopt", file=sys.stderr)
    sys.exit(2)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from agents.adopted import build, fill_or_none, hash_of, read_weights, save_adopted, world_source
from core import artefacts, config as cli
from core.contracts import Agent, EnvSpec, UserError
from core.directions import fingerprint
from core.files import json_of
from core.plugins import read_source
from core.trees import Tree, each, flatten, leaves, unflatten
from envs.registry import make, spec_of

STAGE = "adopt"
ROWS = 4  # worlds side by side that the check looks at
BATCHES = 4  # observations of each
EVERY = 5  # steps between them
DARK = 32  # pictures without a byte as bright as this hardly show anything
NOT_ALLOWED = -1e8  # logits below stand for choices that are not allowed (-1e9)

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class AdoptConfig:
    """Check an agent of your own and make it a run directory that every stage takes (docs/bring-your-own.md)."""

    module: tyro.conf.Positional[Path] = Path("my_agent.py")
    """.py file with make_agent(spec)"""
    weights: Path | None = None
    """.safetensors, a state dict (.pt, .pth), or a zip of Stable-Baselines3; none for an agent of rules"""
    env: str = "procgen/coinrun"
    """its world: procgen/GAME, planted/KIND, nmmo, gymnasium/ID, or a .py file with make_env"""
    env_options: str = "{}"
    """the world's options as a JSON object, or a file that holds one"""
    out: Path = Path("runs/agent")
    """run directory to write"""
    trust: str | None = None
    """do nothing but agree to run the module on this machine, if it has this SHA-256"""
    seed: int = 0
    """seed of the observations that the check looks at"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


# The check


def broken(rule: str, said: str) -> UserError:
    return UserError(f"{rule}: {said}; see the contract in docs/bring-your-own.md")


class Checked:
    """An agent whose every call is checked: no exception, nothing changed in place, numbers finite, rows kept."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def __call__(self, name: str, *inputs: Any, rows: int = ROWS) -> Any:
        """The tree that a function of the agent gives; rows: how many it must have."""
        before = [_copied(x) for x in inputs]
        try:
            out = getattr(self.agent, name)(*inputs)
        except Exception as error:  # whatever a user's code raises
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            seen = f" (fields: {_described(inputs[0])})" if name == "encode" else ""
            raise broken(
                "calls", f"{name} fails on an observation of {self.agent.spec.env_id}{seen}: {what}"
            ) from error
        for x, was in zip(inputs, before, strict=True):
            if not _equal(x, was):
                raise broken("purity", f"{name} changes its input in place")
        self._tree(name, out, rows)
        return out

    def _tree(self, name: str, out: Tree, rows: int) -> None:
        try:
            tensors = list(leaves(out))
        except TypeError as error:
            raise broken("trees", f"{name} must give tensors or nested tuples of them ({error})") from None
        for x in tensors:
            if x.ndim == 0 or len(x) != rows:
                raise broken("trees", f"{name} gives a tensor {list(x.shape)} for {rows} rows; the batch comes first")
            if x.is_floating_point() and not x.isfinite().all():
                raise broken("finite numbers", f"{name} gives NaN or infinite values")

    def step(self, obs: Batch, state: Tree, first: Tensor) -> tuple[Tree, Tree, Tensor, Tensor]:
        """(seen, state after, logits, value)."""
        rows = len(first)
        seen = self("encode", obs, rows=rows)
        after = self("advance", seen, state, first, rows=rows)
        return seen, after, *self.heads(seen, after, rows)

    def heads(self, seen: Tree, state: Tree, rows: int = ROWS) -> tuple[Tensor, Tensor]:
        out = self("heads", seen, state, rows=rows)
        if not isinstance(out, tuple) or len(out) != 2:
            raise broken("shapes", "heads must give (logits, value)")
        logits, value = out
        spec = self.agent.spec
        if logits.shape != (rows, spec.n_actions):
            raise broken(
                "shapes", f"logits are {list(logits.shape)} for {rows} rows; {spec.env_id} has {spec.n_actions} actions"
            )
        if value.shape != (rows,):
            raise broken("shapes", f"value is {list(value.shape)} for {rows} rows; it must be [{rows}]")
        for name, x in (("logits", logits), ("value", value)):
            if x.dtype != torch.float32:
                raise broken("dtypes", f"{name} are {_word(x.dtype)}, not float32")
        return logits, value


def check(agent: Agent, obs: Sequence[Batch]) -> list[str]:
    """What is to be told of an agent that keeps core.contracts.Agent; of another UserError, one line that names the
    rule.

    obs: BATCHES observations of ROWS rows, of its world.  The agent is in eval mode, on the CPU.
    """
    call = Checked(agent)
    none = torch.zeros(ROWS, dtype=torch.bool)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        _check_points(agent)
        states = _check_states(call, obs, none)
        _check_memory(call, obs, states, none)
        _check_is_first(call, obs[-1], states, none)
        _check_rows(call, obs[-1], states[0])
        _check_frames(call, obs[-1])
        _check_replacing(call, obs[-1], states[0], none)
    return _check_gradients(call, obs[-1], states, none)


def _check_points(agent: Agent) -> None:
    points = agent.points
    if not isinstance(points, Mapping) or "h" not in points:
        raise broken("points", f"points must be a dict of names and widths with 'h' among them, not {points!r}")
    for name, width in points.items():
        if not isinstance(name, str) or not isinstance(width, int) or width < 1:
            raise broken("points", f"the width of {name!r} must be a whole number from 1, not {width!r}")


def _check_states(call: Checked, obs: Sequence[Batch], none: Tensor) -> tuple[Tree, Tree]:
    """Two states, after different pasts."""
    initial = call("initial", ROWS)
    one = call("initial", 1, rows=1)
    if not _equal(each(lambda x: x.expand(ROWS, *x.shape[1:]), one), initial):
        raise broken("trees", "initial(1) is not a row of initial(4)")
    first = call.step(obs[0], initial, ~none)[1]
    try:
        each(_alike, initial, first)
    except (TypeError, ValueError) as error:
        raise broken("trees", f"advance gives a state of another form than initial ({error})") from None
    stored = unflatten(flatten(first), first)
    if not _equal(stored, first):
        raise broken("trees", "a state must survive being stored as float32; keep integers in it below 16,777,216")
    second = call.step(obs[1], first, none)[1]
    return second, call.step(obs[2], call.step(obs[0], initial, ~none)[1], none)[1]


def _check_memory(call: Checked, obs: Sequence[Batch], states: tuple[Tree, Tree], none: Tensor) -> None:
    """The same call gives the same, whatever was called before it, and leaves the weights alone."""
    agent: Any = call.agent
    weights = {k: v.clone() for k, v in agent.state_dict().items()}

    def once(seed: int) -> Tree:
        torch.manual_seed(seed)
        return call.step(obs[-1], states[0], none)

    result = once(0)
    if not _equal(once(0), result):
        raise broken("purity", "the same call gives another result the second time: it keeps something between calls")
    if not _equal(once(1), result):
        raise broken("determinism", "it draws random numbers (dropout, or an action?); drawing is not the agent's part")
    call.step(obs[0], states[1], ~none)
    call.step({k: v[:1] for k, v in obs[1].items()}, call("initial", 1, rows=1), ~none[:1])
    if not _equal(once(0), result):
        raise broken("purity", "a call gives another result after other calls: it keeps something between calls")
    changed = [k for k, v in agent.state_dict().items() if not torch.equal(v, weights[k])]
    if changed:
        raise broken("purity", f"a call changes the tensor {changed[0]!r} of the module")


def _check_is_first(call: Checked, obs: Batch, states: tuple[Tree, Tree], none: Tensor) -> None:
    seen, first = call("encode", obs), torch.arange(ROWS) % 2 == 0
    mixed = call("advance", seen, states[0], first)
    other = call("advance", seen, each(_moved, states[1]), first)
    anew = call("advance", seen, call("initial", ROWS), none)
    going = call("advance", seen, states[0], none)
    for x, y in zip(leaves(mixed), leaves(other), strict=True):
        if not torch.equal(x[first], y[first]):
            raise broken("is_first", "where it is true, the state before still matters; put initial in its place there")
    for x, y in zip(leaves(mixed), leaves(anew), strict=True):
        if not _close(x[first], y[first]):
            raise broken("is_first", "where it is true, the state is not the one that follows initial")
    for x, y in zip(leaves(mixed), leaves(going), strict=True):
        if not _close(x[~first], y[~first]):
            raise broken("is_first", "where it is false, rows depend on what it is elsewhere")


def _check_rows(call: Checked, obs: Batch, state: Tree) -> None:
    first = torch.arange(ROWS) == 1
    whole = call.step(obs, state, first)
    for b in range(ROWS):
        row = slice(b, b + 1)
        alone = call.step({k: v[row] for k, v in obs.items()}, each(lambda x, r=row: x[r], state), first[row])
        if not all(_close(x[row], y) for x, y in zip(leaves(whole), leaves(alone), strict=True)):
            raise broken("rows", "a row alone gives other numbers than in a batch: rows must not touch each other")


def _check_frames(call: Checked, obs: Batch) -> None:
    """Simulators show frames as float32 in [0, 1]."""
    scaled = _floats(obs)
    if not all(_close(x, y) for x, y in zip(leaves(call("encode", obs)), leaves(call("encode", scaled)), strict=True)):
        raise broken(
            "frames", "uint8 frames and the same as float32 in [0, 1] are encoded differently; divide by dtype"
        )


def _check_replacing(call: Checked, obs: Batch, state: Tree, none: Tensor) -> None:
    seen, after, logits, value = call.step(obs, state, none)
    for point, width in call.agent.points.items():
        x = call("read", point, seen, after)
        if not isinstance(x, Tensor) or x.shape != (ROWS, width) or x.dtype != torch.float32:
            shape = f"{_word(x.dtype)} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise broken("points", f"read({point!r}) is {shape}; points says float32 [{ROWS}, {width}]")
        for y in (x, x + 0.1 * torch.randn_like(x)):
            both = call("replaced", point, y, seen, after)
            if not isinstance(both, tuple) or len(both) != 2:
                raise broken("points", f"replaced({point!r}) must give (seen, state)")
            try:
                each(_alike, (seen, after), both)
            except (TypeError, ValueError) as error:
                raise broken("points", f"replaced({point!r}) changes the form of seen or state ({error})") from None
            if not _close(call("read", point, *both), y):
                raise broken("points", f"read({point!r}) after replaced({point!r}) gives something else back")
            if y is x and not all(_close(a, b) for a, b in zip((logits, value), call.heads(*both), strict=True)):
                raise broken("points", f"replaced({point!r}) by what read gave changes logits or value")


def _check_gradients(call: Checked, obs: Batch, states: tuple[Tree, Tree], none: Tensor) -> list[str]:
    """From logits and value to h, to float observations and, where the past matters, to the state before."""
    notes = []
    agent = call.agent
    scaled = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in _floats(obs).items()}
    before = each(lambda x: x.clone().requires_grad_(x.is_floating_point()), states[0])
    seen = agent.encode(scaled)
    after = agent.advance(seen, before, none)
    logits, value = agent.heads(seen, after)
    h = agent.read("h", seen, after).detach().requires_grad_()
    at_h = agent.heads(*agent.replaced("h", h, seen, after))
    with torch.no_grad():
        other = agent.heads(seen, agent.advance(seen, states[1], none))
    fields = [x for x in scaled.values() if x.requires_grad]
    past = [x for x in leaves(before) if x.requires_grad]
    for i, (name, out) in enumerate((("logits", logits), ("value", value))):
        if name == "value" and (torch.cat([out, other[i], at_h[i]]) == out[0]).all():
            notes.append(f"its value is always {float(out[0]):g}: it is taken for a policy without one")
            continue
        _flows(at_h[i], [h], f"{name} to h")
        if fields:
            _flows(out, fields, f"{name} to the observation")
        if past and not _close(out, other[i]):  # float32 rounds what is added and taken away
            _flows(out, past, f"{name} to the state before, which matters to them")
    return notes


def _flows(out: Tensor, sources: Sequence[Tensor], what: str) -> None:
    generator = torch.Generator().manual_seed(0)
    total = (torch.where(out > NOT_ALLOWED, out, 0) * torch.randn(out.shape, generator=generator)).sum()
    grads = (
        [g for g in torch.autograd.grad(total, sources, retain_graph=True, allow_unused=True) if g is not None]
        if total.requires_grad
        else []
    )
    if not all(g.isfinite().all() for g in grads):
        raise broken("gradients", f"those from {what} are NaN or infinite")
    if not any(g.any() for g in grads):
        raise broken("gradients", f"none from {what} (a no_grad or detach on the way, or no such path?)")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(obs: Batch) -> str:
    return ", ".join(f"{k!r} {_word(x.dtype)} {list(x.shape)}" for k, x in obs.items())


def _copied(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {k: v.clone() for k, v in x.items()}
    return each(torch.clone, x) if isinstance(x, (tuple, Tensor)) else x


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, Tensor)):
        return all(torch.equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))
    return bool(a == b)


def _alike(a: Tensor, b: Tensor) -> Tensor:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"{_word(a.dtype)} {list(a.shape)}, then {_word(b.dtype)} {list(b.shape)}")
    return a


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.to(torch.float64), b.to(torch.float64), rtol=1e-3, atol=1e-4)


def _moved(x: Tensor) -> Tensor:
    return x + 1 if x.is_floating_point() else x


def _floats(obs: Batch) -> dict[str, Tensor]:
    """Images (uint8 [B, height, width, channels]) as float32 in [0, 1], other fields as they are."""
    return {k: v.float() / 255 if v.dtype == torch.uint8 and v.ndim == 4 else v for k, v in obs.items()}


# The stage


def observations(spec: EnvSpec, seed: int) -> list[dict[str, Tensor]]:
    """BATCHES observations [ROWS, ...] of a world in which actions are drawn at random."""
    slots = ROWS if spec.env_id != "nmmo" else int(spec.options["players"])
    env = make(spec, slots)
    rng = np.random.default_rng(seed)
    step, out = env.reset(seed), []
    for _ in range(BATCHES):
        for _ in range(EVERY):
            action = np.stack([rng.integers(n, size=slots) for n in spec.parts], 1)
            step = env.step(action if spec.action_parts else action[:, 0])
        out.append({k: torch.from_numpy(v[:ROWS].copy()) for k, v in step.obs.items()})
    env.close()
    return out


def seem_to_be_codes(spec: EnvSpec, seen: Sequence[Batch]) -> list[str]:
    """A note on each picture that may hold numbers of things, as MiniGrid's own encoding does, and not brightness."""
    of_bytes = [name for name in spec.pictures if spec.obs[name].dtype == "uint8"]
    most = {name: max(int(obs[name].max()) for obs in seen) for name in of_bytes}
    return [f"{name} has no byte above {n}: numbers of things, taken for brightness, are an all but black picture"
            for name, n in most.items() if 0 < n < DARK]  # fmt: skip


def options_of(text: str) -> dict[str, Any]:
    """A JSON object, or the file that holds one.  Raises UserError."""
    plain = text.lstrip().startswith(("{", "["))  # else a file's name
    value = json_of(text.encode(), Path("--env_options")) if plain else cli.read_json(Path(text))
    if not isinstance(value, dict):
        raise UserError(f"--env_options {text}: a JSON object is needed")
    return value


def trust(path: Path, sha256: str) -> None:
    """Agree to run a file on this machine.  UserError unless it has this hash."""
    source = read_source(path)
    if source.sha256 != sha256.lower():
        raise UserError(f"{path} has the SHA-256 {source.sha256}, not {sha256}; read it before you agree to it")
    source.agree()
    print(f"{path} may run on this machine")


def main(config: AdoptConfig) -> None:
    torch.set_num_threads(config.threads)
    if config.trust is not None:
        trust(config.module, config.trust)
        return
    cli.require(0, seed=config.seed)
    source, tensors = read_source(config.module), None if config.weights is None else read_weights(config.weights)
    source.agree()
    spec = spec_of(config.env, options_of(config.env_options))
    module = source.run(("make_agent",))
    agent = build(module, source, spec)
    fill_or_none(agent, "agent", module, tensors, config.weights, config.module)
    seen = observations(spec, config.seed)
    notes = check(agent, seen) + seem_to_be_codes(spec, seen)
    with artefacts.new_run(config.out, STAGE, config, overwrite=config.overwrite) as run:
        file = config.weights
        origin = None if file is None else {"file": file.name, "sha256": hash_of(file)}
        save_adopted(agent, source, run.path, origin)
        world = world_source(spec)
        modules = {source.name: source.sha256} | ({world.name: world.sha256} if world is not None else {})
        run.facts = {"agent": fingerprint(agent), "modules": modules}
        run.record("parameters", artefacts.parameter_count(agent), "parameters")
    points = "; ".join([", ".join(f"{name} {width}" for name, width in agent.points.items()), *notes])
    print(f"adopted {config.module} for {spec.env_id} (points: {points}; SHA-256 {source.sha256[:16]}): {config.out}")


if __name__ == "__main__":
    cli.run(AdoptConfig, main, STAGE)
