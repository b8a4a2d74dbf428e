"""The one loop: an agent in a world, be it real, learned, recorded or a frame repeated.

``act`` is an agent's step and is written nowhere else; ``roll`` lets world and agent take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from core.contracts import Agent, EnvSpec, Intervention, LearnedWorld, Memory, Shown, UserError, World
from core.trees import Tree, each, flatten, joined, leaves, rows_of

# The agent's step


class Acted(NamedTuple):
    """What an agent made of an observation."""

    seen: Tree
    untouched: Tree  # its state as it came to be
    state: Tree  # the same after interventions
    h_BH: Tensor
    logits_BA: Tensor
    value_B: Tensor


def apply_interventions(
    interventions: Sequence[Intervention], h_BH: Tensor, t_B: Tensor, mask_B: Tensor | None = None
) -> Tensor:
    """Compose interventions in order.  An empty tuple returns the very same tensor."""
    if not interventions:
        return h_BH
    mask_B = torch.ones(h_BH.shape[0], dtype=torch.bool, device=h_BH.device) if mask_B is None else mask_B
    for intervene in interventions:
        h_BH = intervene(h_BH, t_B, mask_B)
    return h_BH


def decide(
    agent: Agent,
    seen: Tree,
    state: Tree,
    t_B: Tensor,
    intervene: Sequence[Intervention] = (),
    mask_B: Tensor | None = None,
) -> Acted:
    """Interventions (of the rows of ``mask``; None: all) and heads, where the state after the observation is known.

    With an intervention, be it the identity, ``h_BH`` is the very tensor that all that follows is computed from.
    """
    h_BH, after = agent.read("h", seen, state), state
    if intervene:
        h_BH = apply_interventions(intervene, h_BH, t_B, mask_B)
        seen, after = agent.replaced("h", h_BH, seen, state)
    return Acted(seen, state, after, h_BH, *agent.heads(seen, after))


def act(
    agent: Agent,
    obs: Mapping[str, Tensor],
    state: Tree,
    is_first_B: Tensor,
    t_B: Tensor,
    intervene: Sequence[Intervention] = (),
) -> Acted:
    """Encode, advance, interventions, heads.  t: int64 [B], steps of each row's episode."""
    seen = agent.encode(obs)
    return decide(agent, seen, agent.advance(seen, state, is_first_B), t_B, intervene)


def blank(agent: Agent, batch: int) -> Tree:
    """What an agent that is shown nothing (zeros) and may do everything has seen."""
    device = next(leaves(agent.initial(1))).device
    obs = {}
    for name, about in agent.spec.obs.items():
        make = torch.ones if name == "Mask" else torch.zeros
        obs[name] = make(batch, *about.shape, dtype=getattr(torch, about.dtype), device=device)
    return agent.encode(obs)


def heads_at(agent: Agent, h_BH: Tensor, seen: Tree | None = None, state: Tree | None = None) -> tuple[Tensor, Tensor]:
    """(logits, value) of hidden states; seen: None: of an agent that sees nothing and may do everything; state: the
    agent's whole one, in which h takes the place of its own (None: the initial one)."""
    seen = blank(agent, len(h_BH)) if seen is None else seen
    state = agent.initial(len(h_BH)) if state is None else state
    return agent.heads(*agent.replaced("h", h_BH, seen, state))


# Noise and choice


class Noise(NamedTuple):
    """The noise of one step.  A world of None takes its likeliest course; an action of None is the likeliest one; an
    ending of None ends where it is likelier than not."""

    world: Tree | None = None
    action_BA: Tensor | None = None  # standard Gumbel draws
    ending_B: Tensor | None = None  # uniform: the episode ends where its probability is larger


def rows_of_noise(noise: Noise, rows: Tensor) -> Noise:
    """The noise of some rows, int64 [N]."""
    return Noise(*(None if part is None else rows_of(part, rows) for part in noise))


def gumbel(shape: Sequence[int], generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Standard Gumbel draws of like's dtype and device."""
    uniform = torch.rand(tuple(shape), generator=generator, device=like.device, dtype=like.dtype)
    tiny = torch.finfo(like.dtype).tiny
    exponential = (-torch.log(uniform.clamp_min(tiny))).clamp_min(tiny)
    return -torch.log(exponential)


def action_noise(shape: Sequence[int], generator: torch.Generator, greedy: bool) -> Tensor:
    """Action noise of many steps at once, float32 on the CPU; greedy: none, and the likeliest action is taken."""
    return torch.zeros(tuple(shape)) if greedy else gumbel(shape, generator, torch.zeros(()))


def draw_noise(world: World, batch: int, generator: torch.Generator, like: Tensor) -> Noise:
    """All the chance of one step of ``batch`` rows; like: dtype and device of the agent's numbers."""
    return Noise(
        world.draw_noise(batch, generator),
        gumbel((batch, world.spec.n_actions), generator, like),
        torch.rand(batch, generator=generator, device=like.device, dtype=like.dtype),
    )


def straight_through(logits_BA: Tensor, noise_BA: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(index int64 [B], one-hot [B, A]) of the largest logit, or of a Gumbel-max sample.

    The one-hot's gradient is that of the softmax (straight-through; Bengio et al. 2013,
    arXiv:1308.3432).
    """
    scores = logits_BA if noise_BA is None else logits_BA + noise_BA
    index = scores.argmax(-1)
    hard = hot(index, logits_BA.shape[-1], logits_BA)
    soft = logits_BA.softmax(-1)
    return index, hard + (soft - soft.detach())


def choose(logits_BA: Tensor, parts: Sequence[int], noise_BA: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``straight_through`` part by part: (index int64 [B], or [B, parts] where there are several; one-hot [B, A])."""
    if len(parts) < 2:
        return straight_through(logits_BA, noise_BA)
    noises = [None] * len(parts) if noise_BA is None else noise_BA.split(list(parts), -1)
    both = [straight_through(x, n) for x, n in zip(logits_BA.split(list(parts), -1), noises, strict=True)]
    return torch.stack([index for index, _ in both], -1), torch.cat([hot for _, hot in both], -1)


def probabilities(logits: Tensor, parts: Sequence[int]) -> Tensor:
    """Softmax of each part, concatenated, [..., A]."""
    if len(parts) < 2:
        return logits.softmax(-1)
    return torch.cat([x.softmax(-1) for x in logits.split(list(parts), -1)], -1)


def one_hot(action: Tensor, parts: Sequence[int], like: Tensor) -> Tensor:
    """int64 [...] (or [..., parts] where there are several) -> one-hot [..., A], part after part, of like's dtype."""
    if len(parts) < 2:
        return hot(action, parts[0], like)
    return torch.cat([hot(a, n, like) for a, n in zip(action.unbind(-1), parts, strict=True)], -1)


def index_of(action_A: Tensor, parts: Sequence[int]) -> Tensor:
    """One-hot [..., A], part after part -> int64 [...] (or [..., parts] where there are several)."""
    indices = [part.argmax(-1) for part in action_A.split(list(parts), -1)]
    return indices[0] if len(indices) == 1 else torch.stack(indices, -1)


def places_of(action: Tensor, parts: Sequence[int]) -> Tensor:
    """int64 [B] (or [B, parts] where there are several) -> where each part's choice stands among all, [B, parts]."""
    first_P = [sum(parts[:p]) for p in range(len(parts))]
    return action.reshape(len(action), -1) + action.new_tensor(first_P)


def hot(index: Tensor, size: int, like: Tensor) -> Tensor:
    """int64 [...] -> one-hot [..., size], of like's dtype and device; torch's own first looks the indices through."""
    return like.new_zeros(*index.shape, size).scatter(-1, index[..., None], 1.0)


# The loop


class Moment(NamedTuple):
    """Step ``t`` of a roll: what the world shows and what the agent does.  All that is needed to go on from here."""

    t_B: Tensor  # int64, steps of each row's episode
    world: Tree  # the world's state
    shown: Shown
    acted: Acted
    action: Tensor  # int64 [B] or [B, parts]: what the agent would do, or was made to
    action_BA: Tensor  # one-hot: what the world is given
    alive_B: Tensor  # bool, this observation exists

    @property
    def h_BH(self) -> Tensor:
        """The hidden state, after interventions."""
        return self.acted.h_BH


class Place(NamedTuple):
    """All that is needed to go on after a moment; a tree, so that core.trees can cut and join its rows."""

    world: Tree
    action_BA: Tensor  # what the world is given next, one-hot
    state: Tree  # the agent's
    alive_B: Tensor  # bool


def after(moment: Moment) -> Place:
    """Where a moment leaves world and agent."""
    return Place(moment.world, moment.action_BA, moment.acted.state, moment.alive_B)


class Gate:
    """A switch for gradients at action -> world: one forward pass for both, ``open`` or cut."""

    def __init__(self) -> None:
        self.open = True

    def __call__(self, action_BA: Tensor) -> Tensor:
        passed = action_BA.view_as(action_BA)
        if passed.requires_grad:
            passed.register_hook(lambda grad: grad if self.open else torch.zeros_like(grad))  # type: ignore[no-untyped-call]
        return passed


Chooser = Callable[[Acted, Shown], tuple[Tensor, Tensor]]  # (index, one-hot)


def roll(
    agent: Agent,
    world: Any,
    begin: tuple[Tree, Shown],
    *,
    memory: Tree | None = None,
    state: Tree | None = None,
    steps: int | None = None,
    actions: Tensor | None = None,
    choose_by: Chooser | None = None,
    noise: Sequence[Noise | None] | None = None,
    intervene: Sequence[Intervention] = (),
    env_grads: bool | Gate = True,
    forget: bool = False,
    alive_B: Tensor | None = None,
    first: int | Tensor = 0,
) -> Iterator[Moment]:
    """Moments 0 to ``steps`` (None: without end) from what a world shows first.

    begin: (state, shown), as ``World.start`` gives them.  memory: the agent's state before that observation (None: the
    initial one); state: its state *after* it, in place of a memory.
    actions: int64 [B, steps+1] (several parts: [B, steps+1, parts]), what the agent is made to do.
    choose_by: how it chooses otherwise (None: the likeliest, or by ``noise[t].action_BA``).
    noise: a draw for each moment but the first, whose world noise ``start`` was given; its first action counts.
    intervene: changes of h.  forget: the agent goes on from the state that they did not touch.
    env_grads: False cuts the gradient at action -> world, and only there; a Gate can do so later.
    alive, first: where a roll goes on from an earlier moment, who is there and the number of its first moment (int64
    [B]: of each row's episode).
    """
    world_state, shown = begin
    batch, like = len(shown.reward_B), shown.reward_B
    parts = agent.spec.parts
    t_B = torch.zeros(batch, dtype=torch.int64, device=like.device) + first
    nowhere = torch.zeros(batch, dtype=torch.bool, device=like.device)
    alive = torch.ones_like(nowhere) if alive_B is None else alive_B
    carried = agent.initial(batch) if memory is None and state is None else memory
    action_BA = like  # of the moment before
    for i in count():
        draw = None if noise is None else noise[i]
        if i:
            given = env_grads(action_BA) if isinstance(env_grads, Gate) else action_BA
            given = given if env_grads else given.detach()
            world_state, shown = world.step(world_state, given, None if draw is None else draw.world)
            alive = alive & goes_on(shown, draw)
            if shown.is_first_B is not None:
                alive = alive | shown.is_first_B
            t_B = t_B + 1
        is_first = nowhere if shown.is_first_B is None else shown.is_first_B
        if shown.is_first_B is not None:
            t_B = torch.where(is_first, 0, t_B)
        if i == 0 and state is not None:
            acted = decide(agent, agent.encode(shown.obs), state, t_B, intervene)
        else:
            acted = act(agent, shown.obs, carried, is_first, t_B, intervene)
        carried = acted.untouched if forget else acted.state
        if choose_by is not None:
            index, action_BA = choose_by(acted, shown)
        else:
            index, action_BA = choose(acted.logits_BA, parts, None if draw is None else draw.action_BA)
        if actions is not None:
            index = actions[:, i]
            action_BA = one_hot(index, parts, acted.logits_BA)
        yield Moment(t_B, world_state, shown, acted, index, action_BA, alive)
        if i == steps:
            return


def goes_on(shown: Shown, noise: Noise | None) -> Tensor:
    """Whether the episode goes on after the transition that led here, bool [B]."""
    chance: Any = 0.5 if noise is None or noise.ending_B is None else noise.ending_B
    return shown.ending_B <= chance


def go_on(
    agent: Agent, world: World, place: Place, *, noise: Sequence[Noise | None] | None = None, **options: Any
) -> Iterator[Moment]:
    """``roll`` on from after a moment; its first moment is the next one, and ``noise[0]`` that one's."""
    draw = None if noise is None else noise[0]
    state, shown = world.step(place.world, place.action_BA, None if draw is None else draw.world)
    alive_B = place.alive_B & goes_on(shown, draw)
    return roll(agent, world, (state, shown), memory=place.state, noise=noise, alive_B=alive_B, **options)


class Trajectory(NamedTuple):
    """T simulated transitions, aligned like an Episode: T+1 rows of obs, d, h, logits, value and
    action; T rows of reward and terminal probability (row t is the transition t -> t+1)."""

    obs: Mapping[str, Tensor]  # [B, T+1, ...]
    d: Tensor  # [B, T+1, D], the world's features
    h: Tensor  # [B, T+1, H]
    logits: Tensor  # [B, T+1, A]
    value: Tensor  # [B, T+1]
    action: Tensor  # [B, T+1] int64 (several parts: [B, T+1, parts])
    reward: Tensor  # [B, T]
    terminal: Tensor  # [B, T]
    paid: Tensor  # [B, T, 2], ``paid_in``
    alive: Tensor  # [B, T+1] bool
    state: Tensor  # [B, T+1, S], the agent's whole state, flat
    world: Tree  # the world's state, [B, T+1, ...] each


def known_rewards(reward: Tensor) -> Tensor:
    """The chance of a reward at all where the episode [goes on, ends], [..., 2], where rewards are known: 1, also of a
    reward of 0."""
    return reward.new_ones(*reward.shape, 2)


def paid_in(shown: Shown) -> Tensor:
    """That chance in what a world shows, [B, 2]; of one that tells a mean reward alone, 1."""
    return known_rewards(shown.reward_B) if shown.paid_B2 is None else shown.paid_B2


def trajectory_of(moments: Sequence[Moment]) -> Trajectory:
    """What T+1 moments say, along time."""

    def stack(read: Callable[[Moment], Tensor], first: int = 0) -> Tensor:
        found = [read(m) for m in moments[first:]]
        like = read(moments[0])
        return torch.stack(found, 1) if found else like.new_zeros(len(like), 0, *like.shape[1:])

    return Trajectory(
        obs={k: stack(lambda m, k=k: m.shown.obs[k]) for k in moments[0].shown.obs},  # type: ignore[misc]
        d=stack(lambda m: m.shown.features_BD),
        h=stack(lambda m: m.h_BH),
        logits=stack(lambda m: m.acted.logits_BA),
        value=stack(lambda m: m.acted.value_B),
        action=stack(lambda m: m.action),
        reward=stack(lambda m: m.shown.reward_B, 1),
        terminal=stack(lambda m: m.shown.ending_B, 1),
        paid=stack(lambda m: paid_in(m.shown), 1),
        alive=stack(lambda m: m.alive_B),
        state=stack(lambda m: flatten(m.acted.state)),
        world=each(lambda *x: torch.stack(x, 1), *(m.world for m in moments)),
    )


def starts_at(start: tuple[Tree, Shown], rows: Any) -> tuple[Tree, Shown]:
    """Some rows of a start, as ``World.start`` gives one: a slice, or int64 [R]."""
    state, shown = start
    obs = {k: x[rows] for k, x in shown.obs.items()}
    return rows_of(state, rows), Shown(obs, *(x[rows] for x in shown[1:4]))


def joined_starts(parts: Sequence[tuple[Tree, Shown]]) -> tuple[Tree, Shown]:
    """The rows of all parts, in this order."""
    states, shown = zip(*parts, strict=True)
    obs = {k: torch.cat([s.obs[k] for s in shown]) for k in shown[0].obs}
    return joined(states), Shown(obs, *(torch.cat(x) for x in zip(*(s[1:4] for s in shown), strict=True)))


class Recorded:
    """Observations [B, T, ...] as a world in which no action changes anything: they are shown one after the other, and
    the last one for ever (one alone: a held frame).  Rewards, endings and features are none."""

    def __init__(self, spec: EnvSpec, obs: Mapping[str, Tensor]) -> None:
        self.spec, self.obs = spec, obs

    def begin(self) -> tuple[Tensor, Shown]:
        """The first observation of every row; the state is (row, step), int64 [B, 2]."""
        first = next(iter(self.obs.values()))
        rows = torch.arange(len(first), device=first.device)
        return self._show(torch.stack([rows, torch.zeros_like(rows)], 1))

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Tensor, Shown]:
        """``begin``: the observations stand for themselves."""
        return self.begin()

    def step(self, state: Tensor, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tensor, Shown]:
        return self._show(state + torch.tensor([0, 1], device=state.device))

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tree:
        return ()

    def _show(self, state_B2: Tensor) -> tuple[Tensor, Shown]:
        row_B, at_B = state_B2.unbind(1)
        obs = {k: x[row_B, at_B.clamp(max=x.shape[1] - 1)] for k, x in self.obs.items()}
        like = next((x for x in obs.values() if x.is_floating_point()), torch.zeros(len(row_B), device=row_B.device))
        none = like.new_zeros(len(row_B))
        return state_B2, Shown(obs, none, none, none[:, None][:, :0])


# A world and the agent that is studied in it


WorldT = TypeVar("WorldT", bound=LearnedWorld, covariant=True)


@dataclass(frozen=True)
class Simulator(Generic[WorldT]):
    """A world, the agent that is studied in it, and what this agent remembers where nobody recorded it.

    memory: None: the agent's initial state.
    """

    agent: Agent
    world: WorldT
    memory: Memory | None

    def remembered(self, z_BZ: Tensor) -> Tree:
        """The agent's state before the first observation of every latent."""
        return self.agent.initial(len(z_BZ)) if self.memory is None else self.memory(z_BZ)

    def roll(self, z_BZ: Tensor, *, noise: Sequence[Noise | None] | None = None, **options: Any) -> Iterator[Moment]:
        """``roll`` from latents; options as there."""
        begin = self.world.start(z_BZ, None if noise is None or noise[0] is None else noise[0].world)
        if options.get("state") is None:
            options.setdefault("memory", self.remembered(z_BZ))
        return roll(self.agent, self.world, begin, noise=noise, **options)

    def rollout(self, z_BZ: Tensor, steps: int, **options: Any) -> Trajectory:
        """``steps`` transitions from latents; options as in ``roll``."""
        return trajectory_of(list(self.roll(z_BZ, steps=steps, **options)))

    def draw_noise(self, batch: int, generator: torch.Generator) -> Noise:
        """All the chance of one step; the generator is on the world's device."""
        like = next(x for x in leaves(self.agent.initial(1)) if x.is_floating_point())
        return draw_noise(self.world, batch, generator, like)

    def with_agent(self, agent: Agent) -> Simulator[WorldT]:
        """The same world with another agent in it, which begins with its initial state: a latent tells only what the
        world's own agent remembered.  UserError for an agent of another game or with other observations or actions."""
        for what in agent.spec.differences(self.world.spec):
            if what != "options":
                raise UserError(f"the agent does not fit this world: its {what} are another's ({agent.spec.env_id})")
        return replace(self, agent=agent, memory=None)
