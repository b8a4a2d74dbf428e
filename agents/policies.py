"""Policies for worlds whose action has several parts: a module's Policy and Recurrent as one agent.

A policy module, one of ``ZOO`` or a user's one file (which may import from this checkout), has three names:

``Policy(spec, size=256)``: nn.Module with ``embedding_size``; ``encode(obs) -> (e_BE, seen)``, where ``seen`` is a
    NamedTuple of tensors that the decoder needs; ``decode(h_BH, seen) -> (logits_BA, value_B)``, the logits in the
    order of ``spec.action_parts``, those that are not allowed -1e9.
``Recurrent(embedding_size, size)``: nn.Module with ``state_size`` and ``hidden_size``; ``initial(B) -> state_BS``,
    ``advance(e_BE, state_BS, is_first_B) -> (h_BH, state_BS)``.  Or ``Recurrent = None``: h is e, the state is empty.
    It may have ``places``, a dict from a name to the slice of the state where that vector lies.  With ``h`` in it, an
    h that an intervention changed is what the next step remembers; without, only this step's decoder gets it.  Other
    names (``cell``) become points of the agent, which can be read and replaced.
``RewardWrapper()``: a pure callable ``(before: Step, after: Step) -> float32 [B]``; ``after.reward`` is the task's.

Axes: P parts of an action, S state of the recurrence; the others are core.contracts'.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from core.artefacts import (
    WEIGHTS,
    load_json,
    load_weights,
    parameter_count,
    read_manifest,
    save_weights,
    write_atomically,
    write_json,
)
from core.config import nearest
from core.contracts import EnvSpec, Step, UserError
from core.plugins import agreed, copied_source, read_source
from core.trees import Tree, leaves

ZOO = ("start_kit", "yaofeng", "takeru", "hybrid")
SOURCE = "policy_module.py"  # the copy of a user's module in a run directory
DESCRIPTION = "policy.json"

RewardWrapper = Callable[[Step, Step], np.ndarray]


@dataclass(frozen=True)
class PolicyModule:
    """The three names of a policy module; ``source`` is the text of a user's file, None for the zoo's."""

    name: str
    policy: type[nn.Module]
    recurrent: type[nn.Module] | None
    reward: Callable[[], RewardWrapper]
    source: bytes | None = None

    @property
    def sha256(self) -> str | None:
        """Hex SHA-256 of a user's source."""
        return None if self.source is None else hashlib.sha256(self.source).hexdigest()


def load_module(name_or_path: str | Path) -> PolicyModule:
    """A policy of the zoo by name, or a user's by the path of its .py file.  Raises UserError."""
    name = str(name_or_path)
    if name in ZOO:
        module = importlib.import_module(f"agents.zoo.{name}")
        return PolicyModule(name, module.Policy, module.Recurrent, module.RewardWrapper)
    path = Path(name_or_path)
    if path.suffix != ".py":
        known = ", ".join(ZOO)
        raise UserError(f"no policy {name!r}{nearest(name, ZOO)}; give one of {known}, or the path of a .py file")
    source = read_source(path)
    found = _module_of(path, source.text)
    source.agree()  # whoever names a file means to run it
    return found


def _module_of(path: Path, source: bytes) -> PolicyModule:
    """Run a user's source, exactly these bytes (no cached bytecode, none left beside the file)."""
    name = f"_policy_{path.stem}_{hashlib.sha256(source).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"the policy module {path} cannot be loaded: {type(error).__name__}: {error}") from error
    missing = [n for n in ("Policy", "Recurrent", "RewardWrapper") if not hasattr(module, n)]
    if missing:
        raise UserError(
            f"the policy module {path} has no {' and no '.join(missing)}; "
            f"it needs Policy, Recurrent (a class, or None) and RewardWrapper"
        )
    for n in ("Policy", "Recurrent"):
        value = getattr(module, n)
        if not (isinstance(value, type) and issubclass(value, nn.Module)) and not (n == "Recurrent" and value is None):
            raise UserError(f"the policy module {path}: {n} is not a torch.nn.Module class")
    if not callable(module.RewardWrapper):
        raise UserError(f"the policy module {path}: RewardWrapper is not a class")
    return PolicyModule(path.stem, module.Policy, module.Recurrent, module.RewardWrapper, source)


class PolicyAgent(nn.Module):
    """Policy and recurrence of a module as one agent; keeps core.contracts.Agent.

    ``seen`` is (e_BE, what the decoder needs of the observation); the state is (h_BH, the decoder's input; state_BS of
    the recurrence).
    """

    def __init__(self, module: PolicyModule | str | Path, spec: EnvSpec, size: int = 256) -> None:
        """size: width of embedding and core; at least 16.  Raises UserError if the module misfits the world."""
        super().__init__()
        module = module if isinstance(module, PolicyModule) else load_module(module)
        if size < 16:
            raise UserError(f"a policy's size must be at least 16, not {size}")
        if not spec.action_parts:
            raise UserError(f"{spec.env_id} has one discrete action; policies are for worlds with several parts (nmmo)")
        self.module, self.spec, self.size = module, spec, size
        try:
            self._build()
        except UserError:
            raise
        except Exception as error:
            if module.source is None:
                raise
            what = f"{type(error).__name__}: {error}"
            raise UserError(f"policy module {module.name!r} does not work in {spec.env_id}: {what}") from error

    def _build(self) -> None:
        """Make the module's parts and see that they fit together.  Raises UserError."""
        module, spec, size = self.module, self.spec, self.size
        self.policy = module.policy(spec, size)
        embedding_size = int(self.policy.embedding_size)  # type: ignore[arg-type]
        self.recurrent = None if module.recurrent is None else module.recurrent(embedding_size, size)
        core: Any = self.recurrent
        hidden_size = embedding_size if core is None else int(core.hidden_size)
        self.places: dict[str, slice] = dict(getattr(core, "places", {}))
        widths = {name: len(range(int(core.state_size))[place]) for name, place in self.places.items()}
        self.points = {**widths, "h": hidden_size, "embedding": embedding_size}
        self._check(0 if core is None else int(core.state_size))

    @property
    def name(self) -> str:
        """The module's name."""
        return self.module.name

    def _check(self, state_size: int) -> None:
        """UserError unless what the module's parts return has the shapes that their contract says."""
        B = 2
        with torch.no_grad():
            seen = self.encode(example(self.spec, B, None))
            try:
                list(leaves(seen))
            except TypeError as error:
                raise UserError(f"policy {self.name!r}: what encode gives the decoder: {error}") from None
            state = self.advance(seen, self.initial(B), torch.ones(B, dtype=torch.bool))
            logits, value = self.heads(seen, state)
        for what, have, want in (
            ("encode's e", seen[0], (B, self.points["embedding"])),
            ("advance's h", state[0], (B, self.points["h"])),
            ("advance's state", state[1], (B, state_size)),
            ("decode's logits", logits, (B, self.spec.n_actions)),
            ("decode's value", value, (B,)),
        ):
            if tuple(have.shape) != want:
                raise UserError(f"policy {self.name!r}: {what} has shape {tuple(have.shape)}, it must be {want}")
        if "h" in self.places and not torch.equal(state[0], self._part("h", state)):
            raise UserError(f"policy {self.name!r}: h does not lie in the state where Recurrent.places says")

    def _part(self, point: str, state: Tree) -> Tensor:
        part: Tensor = state[1][:, self.places[point]]
        return part

    def initial(self, batch: int) -> Tree:
        like = next(self.parameters())
        core = like.new_zeros(batch, 0) if self.recurrent is None else self.recurrent.initial(batch)  # type: ignore[operator]
        return like.new_zeros(batch, self.points["h"]), core

    def encode(self, obs: Mapping[str, Tensor]) -> Tree:
        e, seen = self.policy.encode(obs)  # type: ignore[operator]
        return e, seen

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        """As the contract says; of ``seen`` only e is looked at."""
        if self.recurrent is None:
            return seen[0], state[1]
        h, core = self.recurrent.advance(seen[0], state[1], is_first_B)  # type: ignore[operator]
        return h, core

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        """As the contract says; of the state only h is looked at."""
        logits, value = self.policy.decode(state[0], seen[1])  # type: ignore[operator]
        return logits, value

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        vectors: dict[str, Tensor] = {"h": state[0], "embedding": seen[0]}
        return vectors[point] if point in vectors else self._part(point, state)

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        """As the contract says.  h enters the recurrence too where the module says where it lies there (``places``);
        a cell is what the next step remembers, and leaves this step's h as it was."""
        if point == "embedding":
            return (x_BN, seen[1]), state
        h_BH, core_BS = state
        if point in self.places:
            column = torch.arange(core_BS.shape[1], device=core_BS.device)[self.places[point]]
            core_BS = core_BS.index_copy(1, column, x_BN)
        return seen, (x_BN if point == "h" else h_BH, core_BS)

    @property
    def recurrence(self) -> str:
        """The core in words, as its class says: "LSTM, 1 layer, 256"; "none"."""
        if self.recurrent is None:
            return "none"
        return str(getattr(self.recurrent, "summary", type(self.recurrent).__name__))

    def describe(self) -> dict[str, Any]:
        """Module, sizes, parameters, the declared recurrence and the measured one (JSON values).

        ``remembers_replaced_h``: an h that an intervention changed enters the recurrence, and not this step's decoder
        alone.
        """
        return {
            "module": self.name,
            "size": self.size,
            "parameters": parameter_count(self),
            "hidden_size": self.points["h"],
            "state_size": self.initial(1)[1].shape[1],
            "recurrence": self.recurrence,
            "remembers_replaced_h": "h" in self.places,
            **memory(self),
        }


def example(spec: EnvSpec, batch: int, generator: torch.Generator | None) -> dict[str, Tensor]:
    """Observations of the right shapes: integers 0 or 1 (legal in every column), floats in [0, 1), everything allowed;
    without a generator zeros, as a dead agent's slot shows."""
    out = {}
    for name, about in spec.obs.items():
        dtype = getattr(torch, about.dtype)
        shape = (batch, *about.shape)
        if name == "Mask":
            out[name] = torch.ones(shape, dtype=dtype)
        elif generator is None:
            out[name] = torch.zeros(shape, dtype=dtype)
        elif dtype.is_floating_point:
            out[name] = torch.rand(shape, generator=generator).to(dtype)
        else:
            out[name] = torch.randint(0, 2, shape, generator=generator).to(dtype)
    return out


@torch.no_grad()
def memory(agent: PolicyAgent, batch: int = 16, steps: int = 3) -> dict[str, Any]:
    """Measured, not declared: does h change when only the past does?

    Two different pasts of ``steps`` observations, then the same observation.  ``remembers``: h differs;
    ``memory_change``: the root mean square of the difference as a share of that of h; ``forgets_at_start``: with
    is_first at that last observation, h does not differ.
    """
    device = next(agent.parameters()).device
    generator = torch.Generator().manual_seed(0)

    def shown() -> dict[str, Tensor]:
        return {k: v.to(device) for k, v in example(agent.spec, batch, generator).items()}

    first, going = (torch.full((batch,), x, device=device) for x in (True, False))
    pasts = []
    for _ in range(2):
        state = agent.initial(batch)
        for t in range(steps):
            state = agent.advance(agent.encode(shown()), state, going if t else first)
        pasts.append(state)
    seen = agent.encode(shown())

    def h_after(past: Tree, is_first_B: Tensor) -> Tensor:
        return agent.read("h", seen, agent.advance(seen, past, is_first_B))

    one, other = (h_after(past, going) for past in pasts)
    anew = [h_after(past, first) for past in pasts]
    change = float((one - other).pow(2).mean().sqrt() / one.pow(2).mean().sqrt().clamp(min=1e-12))
    return {"remembers": change > 0, "memory_change": change, "forgets_at_start": torch.equal(*anew)}


def save_policy(agent: PolicyAgent, path: Path, name: str = WEIGHTS) -> None:
    """Weights and all that is needed to build the agent again, a user's module included."""
    path, module = Path(path), agent.module
    about = {"module": module.name, "size": agent.size, "spec": agent.spec.to_json(), "source_sha256": module.sha256}
    if module.source is not None:
        write_atomically(path / SOURCE, module.source)
    write_json(path / DESCRIPTION, about)
    save_weights(agent, path / name)


def load_policy(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> PolicyAgent:
    """The agent of a run directory, in eval mode, frozen.

    UserError if it is half-written or of another architecture, or one of its files is not the one that was written:
    its own copy of a user's module is compared before it runs, and nobody agreed on this machine to run that.
    """
    path = Path(path)
    if DESCRIPTION not in read_manifest(path)["files"]:
        raise UserError(f"{path} holds no policy (it has no {DESCRIPTION}); train one with python train.py nmmo")
    data = load_json(path, DESCRIPTION)
    if not isinstance(data, dict) or not {"module", "size", "spec", "source_sha256"} <= data.keys():
        raise UserError(f"{path / DESCRIPTION} is not the description of a policy; copy or train it again")
    size, hashed = data["size"], data["source_sha256"]
    if not isinstance(size, int) or (hashed is None and data["module"] not in ZOO):
        raise UserError(f"{path / DESCRIPTION}: no policy {data['module']!r} of size {size!r}; copy or train it again")
    if hashed is None:
        module = load_module(data["module"])
    else:
        source = copied_source(path, SOURCE, str(data["module"]), str(hashed))
        agreed(source)
        module = replace(_module_of(path / SOURCE, source.text), name=data["module"])
    agent = PolicyAgent(module, EnvSpec.from_json(data["spec"]), size)
    load_weights(agent, path, name)
    return agent.to(device).eval().requires_grad_(False)


def part_slices(spec: EnvSpec) -> dict[str, slice]:
    """Where each part of the action lies in the flat logits and in the mask; one part ``action`` where the world names
    none."""
    out, start = {}, 0
    for part, choices in (spec.action_parts or {"action": spec.n_actions}).items():
        out[part] = slice(start, start + choices)
        start += choices
    return out


def _parts(logits_BA: Tensor, spec: EnvSpec) -> tuple[Tensor, ...]:
    """Normalised log-probabilities of each part, [B, choices]; uniform where none is allowed (a dead slot)."""
    return tuple(x.log_softmax(-1) for x in logits_BA.split(list(spec.parts), -1))


def log_probs(logits_BA: Tensor, action_BP: Tensor, spec: EnvSpec) -> Tensor:
    """Log-probability of each part's choice, [B, P]; the parts are independent given h, so an action's is their sum."""
    rows = zip(_parts(logits_BA, spec), action_BP.unbind(-1), strict=True)
    return torch.stack([logp.gather(-1, choice[..., None])[..., 0] for logp, choice in rows], -1)


def entropies(logits_BA: Tensor, spec: EnvSpec) -> Tensor:
    """Entropy of each part in nats, [B, P]."""
    return torch.stack([-(logp.exp() * logp).sum(-1) for logp in _parts(logits_BA, spec)], -1)


def sample(
    logits_BA: Tensor,
    spec: EnvSpec,
    generator: torch.Generator | None = None,
    *,
    greedy: bool = False,
    among: tuple[int, int] | None = None,
) -> Tensor:
    """Draw a choice of every part (Gumbel-max), int64 [B, P]; greedy: the likeliest.  What is masked is never drawn.

    generator: on the logits' device (None: torch's own).  among: (the place of the first of these rows, how many there
    are) where they are some of more, for all of which is drawn.
    """
    logp = torch.cat(_parts(logits_BA, spec), -1)
    if not greedy:
        at, rows = among or (0, len(logp))
        uniform = torch.rand((rows, logp.shape[1]), generator=generator, device=logp.device, dtype=logp.dtype)
        uniform = uniform[at : at + len(logp)]
        logp = logp - (-uniform.clamp(min=1e-20).log()).log()
    return torch.stack([x.argmax(-1) for x in logp.split(list(spec.parts), -1)], -1)


def kl_per_part(logits_p: Tensor, logits_q: Tensor, spec: EnvSpec) -> Tensor:
    """KL(p || q) of each part in nats, [B, P]; both logits masked alike."""
    pairs = zip(_parts(logits_p, spec), _parts(logits_q, spec), strict=True)
    return torch.stack([(p.exp() * (p - q)).sum(-1) for p, q in pairs], -1)
