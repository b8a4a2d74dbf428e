"""The loop: whose turn it is, what is cut, forced, noised, ended, gone on from; other people's agents and worlds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from core.contracts import EnvSpec, Field, Shown
from core.interventions import AddVector, AtSteps, Tally
from core.roll import (
    Acted,
    Gate,
    Moment,
    Noise,
    Recorded,
    act,
    after,
    apply_interventions,
    choose,
    decide,
    draw_noise,
    go_on,
    gumbel,
    one_hot,
    roll,
    rows_of_noise,
    straight_through,
    trajectory_of,
)
from core.trees import Tree, flatten, joined, leaves, rows_of, unflatten

B, X, H, A = 4, 3, 5, 3
F64 = torch.float64
SPEC = EnvSpec(
    env_id="foreign/vectors",
    obs={"x": Field(shape=(X,), dtype="float32"), "extra": Field(shape=(2,), dtype="float32")},
    action_names=("left", "stay", "right"),
    slots=1,
)
PARTS = replace(SPEC, action_names=(*SPEC.action_names, "talk", "listen"), action_parts={"move": 3, "say": 2})


class LSTM(nn.Module):
    """Somebody's agent: two fields, a state (h, c), one class."""

    def __init__(self, spec: EnvSpec = SPEC) -> None:
        super().__init__()
        self.spec, self.points = spec, {"h": H, "cell": H}
        self.lstm, self.head = nn.LSTMCell(X + 2, H), nn.Linear(H, spec.n_actions + 1)

    def initial(self, batch: int) -> Tree:
        zero = self.head.weight.new_zeros(batch, H)
        return zero, zero + 0.25

    def encode(self, obs: Mapping[str, Tensor]) -> Tree:
        return (torch.cat([obs["x"], obs["extra"]], -1),)

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        first = self.initial(len(is_first_B))
        before = tuple(torch.where(is_first_B[:, None], i, s) for i, s in zip(first, state, strict=True))
        return tuple(self.lstm(seen[0], before))

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        out = self.head(state[0])
        return 3 * out[:, 1:], out[:, 0]

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        h, c = state
        return h if point == "h" else c

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        h, c = state
        return seen, (x_BN, c) if point == "h" else (h, x_BN)


class Where(NamedTuple):
    x_BX: Tensor
    age_B: Tensor


class Line:
    """Somebody's world: a vector that drifts, is pushed by actions, and ends the likelier the further it is.

    every: its time begins again after so many steps (None: never), as a recorded one's does."""

    def __init__(self, spec: EnvSpec = SPEC, every: int | None = None) -> None:
        self.spec, self.every = spec, every
        draw = torch.Generator().manual_seed(7)
        self.push_AX = torch.randn(spec.n_actions, X, generator=draw, dtype=F64)

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Where, Shown]:
        return self._show(Where(z_BZ, torch.zeros(len(z_BZ), dtype=torch.int64)))

    def step(self, state: Where, action_BA: Tensor, noise: Tree | None = None) -> tuple[Where, Shown]:
        x = 0.75 * state.x_BX + action_BA @ self.push_AX + (0 if noise is None else 0.5 * noise)
        age = state.age_B + 1
        if self.every is not None:
            age = age % self.every
        return self._show(Where(x, age))

    def _show(self, state: Where) -> tuple[Where, Shown]:
        x, first = state.x_BX, None if self.every is None else state.age_B == 0
        obs = {"x": x, "extra": x[:, :2] ** 2}
        return state, Shown(obs, x.sum(-1), torch.sigmoid(x[:, 0] - 2), x, first)

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tree:
        return torch.randn(batch, X, generator=generator, dtype=F64)


@pytest.fixture
def agent() -> LSTM:
    torch.manual_seed(0)
    return LSTM().double().requires_grad_(False)


@pytest.fixture
def talker() -> LSTM:
    torch.manual_seed(0)
    return LSTM(PARTS).double().requires_grad_(False)


def starts(seed: int = 0, batch: int = B) -> Tensor:
    return torch.randn(batch, X, generator=torch.Generator().manual_seed(seed), dtype=F64)


def draws(world: Line, count: int, seed: int = 0) -> list[Noise]:
    generator = torch.Generator().manual_seed(seed)
    return [draw_noise(world, B, generator, torch.zeros((), dtype=F64)) for _ in range(count)]


def play(agent: LSTM, world: Line, steps: int = 4, z: Tensor | None = None, **options: Any) -> list[Moment]:
    return list(roll(agent, world, world.start(starts() if z is None else z), steps=steps, **options))


def numbers(m: Moment) -> list[Tensor]:
    """All that a moment says."""
    return [*m.shown.obs.values(), *leaves((*m.shown[1:4], m.world, tuple(m.acted), *m[4:], m.t_B))]


def same(a: list[Moment], b: list[Moment]) -> bool:
    pairs = [p for m, n in zip(a, b, strict=True) for p in zip(numbers(m), numbers(n), strict=True)]
    return all(torch.equal(x, y) for x, y in pairs)


NOT_FIRST = torch.zeros(B, dtype=torch.bool)


# The agent's step


def test_act_is_encode_advance_interventions_heads(agent: LSTM) -> None:
    obs, state = Line().start(starts())[1].obs, agent.initial(B)
    plain, push = act(agent, obs, state, NOT_FIRST, torch.zeros(B).long()), torch.full((H,), 0.5, dtype=F64)
    seen = agent.encode(obs)
    h, c = agent.advance(seen, state, NOT_FIRST)
    assert torch.equal(plain.state[0], h) and torch.equal(plain.state[1], c) and plain.untouched is plain.state
    assert torch.equal(plain.logits_BA, agent.heads(seen, (h, c))[0])
    moved = act(agent, obs, state, NOT_FIRST, torch.zeros(B).long(), (AddVector(push),))
    assert torch.equal(moved.state[0], h + push) and torch.equal(moved.state[1], c)  # of h, not of the rest
    assert torch.equal(moved.untouched[0], h)
    logits, value = agent.heads(seen, (h + push, c))
    assert torch.equal(moved.logits_BA, logits) and torch.equal(moved.value_B, value)
    first = torch.tensor([True, False, False, True])
    other = act(agent, obs, tuple(x + 1 for x in state), first, torch.zeros(B).long()).state
    assert [torch.equal(other[0][b], h[b]) for b in range(B)] == first.tolist()


def test_decide_takes_the_state_as_it_is(agent: LSTM) -> None:
    seen = agent.encode(Line().start(starts())[1].obs)
    state, push = agent.advance(seen, agent.initial(B), NOT_FIRST), torch.ones(H, dtype=F64)
    acted = decide(agent, seen, state, torch.zeros(B).long(), (AddVector(push),))
    assert isinstance(acted, Acted) and torch.equal(acted.h_BH, state[0] + 1) and torch.equal(acted.state[1], state[1])
    assert torch.equal(acted.logits_BA, agent.heads(seen, (state[0] + 1, state[1]))[0])


def test_with_an_intervention_all_that_follows_comes_from_its_h(agent: LSTM) -> None:
    """Even from the identity's: a leaf put there has the gradient of everything after it."""
    leaves_: list[Tensor] = []

    def leaf(h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        leaves_.append(h_BH.detach().requires_grad_())
        return leaves_[-1]

    moments = play(agent, Line(), 2, intervene=(leaf,))
    assert all(m.h_BH is x for m, x in zip(moments, leaves_, strict=True))
    for y in (moments[0].acted.logits_BA, moments[1].world.x_BX):
        assert torch.autograd.grad(y.square().sum(), leaves_[0], retain_graph=True)[0].abs().max() > 0
    assert same(moments, play(agent, Line(), 2))


def test_interventions_hear_the_step_of_each_row() -> None:
    heard: list[tuple[list[int], list[bool]]] = []

    def listen(h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        heard.append((t_B.tolist(), mask_B.tolist()))
        return h_BH

    h, t = torch.zeros(3, 2), torch.tensor([4, 0, 9])
    apply_interventions((listen,), h, t)
    apply_interventions((listen,), h, t, torch.tensor([True, False, True]))
    assert heard == [([4, 0, 9], [True] * 3), ([4, 0, 9], [True, False, True])]
    out = apply_interventions((AtSteps(AddVector(torch.ones(2)), 4, 9),), h, t)
    assert out[:, 0].tolist() == [1, 0, 0]
    assert apply_interventions((), h, t) is h


# Choice


def test_choice_is_part_by_part() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, noise = (torch.randn(50, 5, generator=draw, dtype=F64) for _ in range(2))
    logits[:, 1] = -1e9  # not allowed
    for n in (None, noise):
        index, hot = choose(logits, (3, 2), n)
        scores = logits if n is None else logits + n
        assert index.shape == (50, 2) and hot.shape == (50, 5)
        assert torch.equal(index[:, 0], scores[:, :3].argmax(-1)) and torch.equal(index[:, 1], scores[:, 3:].argmax(-1))
        assert torch.equal(hot.round(), one_hot(index, (3, 2), logits)) and not (index[:, 0] == 1).any()
        alone, alone_hot = choose(logits, (5,), n)
        assert alone.shape == (50,) and torch.equal(alone, scores.argmax(-1))
        assert torch.equal(alone_hot, straight_through(logits, n)[1])
    windows = torch.tensor([[[0, 1], [2, 0]]])
    assert one_hot(windows, (3, 2), logits).tolist() == [[[1, 0, 0, 0, 1], [0, 0, 1, 1, 0]]]
    assert one_hot(torch.tensor([2, 0]), (3,), torch.zeros(1)).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_the_gradient_of_a_choice_is_the_softmax_s_of_its_part() -> None:
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=F64, requires_grad=True)
    weights = torch.arange(5, dtype=F64)
    found = torch.autograd.grad((choose(logits, (3, 2))[1] @ weights).sum(), logits)[0]
    soft = torch.cat([logits[:, :3].softmax(-1), logits[:, 3:].softmax(-1)], -1)
    torch.testing.assert_close(found, torch.autograd.grad((soft @ weights).sum(), logits)[0])


def test_a_draw_is_all_the_chance_of_a_step() -> None:
    world = Line()
    a, b = draws(world, 200, 0), draws(world, 200, 1)
    assert torch.equal(a[3].action_BA, draws(world, 200, 0)[3].action_BA)
    assert not torch.equal(a[0].world, b[0].world) and not torch.equal(a[0].ending_B, b[0].ending_B)
    assert a[0].action_BA.shape == (B, A) and a[0].action_BA.dtype == a[0].ending_B.dtype == F64
    chance = torch.stack([d.ending_B for d in a])
    assert chance.min() >= 0 and chance.max() < 1 and abs(chance.mean() - 0.5) < 4 * 0.2887 / 800**0.5
    many = gumbel((100_000,), torch.Generator().manual_seed(0), torch.zeros((), dtype=F64))
    assert abs(many.mean() - 0.5772) < 0.02 and abs(many.var() - 1.6449) < 0.05 and many.isfinite().all()


# Turns


def test_a_foreign_agent_in_a_foreign_world(agent: LSTM) -> None:
    """By hand, turn by turn, with an intervention on h: the same numbers, the whole state kept."""
    world, push = Line(), torch.full((H,), 0.5, dtype=F64)
    moments = play(agent, world, intervene=(AtSteps(AddVector(push), 1, 3),))
    state, (at, shown), action = agent.initial(B), world.start(starts()), None
    for t, m in enumerate(moments):
        if action is not None:
            at, shown = world.step(at, one_hot(action, (A,), push))
        seen = agent.encode(shown.obs)
        h, c = agent.advance(seen, state, NOT_FIRST)
        state = (h + push if t in (1, 2) else h, c)
        logits, value = agent.heads(seen, state)
        action = logits.argmax(-1)
        assert torch.equal(m.h_BH, state[0]) and torch.equal(m.acted.state[1], c) and m.t_B.tolist() == [t] * B
        torch.testing.assert_close(m.acted.logits_BA, logits, rtol=0, atol=1e-12)
        torch.testing.assert_close(m.acted.value_B, value, rtol=0, atol=1e-12)
        assert torch.equal(m.action, action) and torch.equal(m.world.x_BX, at.x_BX)
    out = trajectory_of(moments)
    assert out.state.shape == (B, 5, 2 * H) and torch.equal(out.state[..., :H], out.h)
    h, c = unflatten(out.state[:, 3], agent.initial(1))
    assert torch.equal(c, moments[3].acted.state[1]) and set(out.obs) == {"x", "extra"}
    assert len(out.action[:, :-1].unique()) > 1  # it does not just do one thing


def test_it_goes_on_from_what_interventions_left_unless_it_forgets(agent: LSTM) -> None:
    push = AddVector(torch.full((H,), 2.0, dtype=F64))
    forced = torch.zeros(B, 4, dtype=torch.long)  # so that memory is the only way
    plain = trajectory_of(play(agent, Line(), 3, actions=forced))
    once = (AtSteps(push, 1, 2),)
    kept = trajectory_of(play(agent, Line(), 3, actions=forced, intervene=once))
    forgot = trajectory_of(play(agent, Line(), 3, actions=forced, intervene=once, forget=True))
    assert torch.equal(kept.h[:, 1], forgot.h[:, 1]) and not torch.equal(kept.h[:, 1], plain.h[:, 1])
    assert torch.equal(kept.logits[:, 1], forgot.logits[:, 1])
    assert torch.equal(forgot.h[:, 2:], plain.h[:, 2:]) and (kept.h[:, 2] - plain.h[:, 2]).abs().max() > 1e-3


def test_a_tally_hears_every_moment(agent: LSTM) -> None:
    tally = Tally((AtSteps(AddVector(torch.ones(H, dtype=F64)), 1, 3),))
    play(agent, Line(), 4, intervene=(tally,))
    assert [x.all().item() for x in tally.altered] == [False, True, True, False, False]


def test_memory_is_before_the_first_observation_and_state_after_it(agent: LSTM) -> None:
    world = Line()
    (_, shown), draw = world.start(starts()), torch.Generator().manual_seed(1)
    memory = tuple(torch.randn(B, H, generator=draw, dtype=F64) for _ in range(2))
    known = agent.advance(agent.encode(shown.obs), memory, NOT_FIRST)
    a, b = play(agent, world, memory=memory), play(agent, world, state=known)
    assert same(a, b) and not torch.equal(a[0].h_BH, play(agent, world)[0].h_BH)
    assert same(play(agent, world), play(agent, world, memory=agent.initial(B)))
    push = (AddVector(torch.ones(H, dtype=F64)),)
    pushed = play(agent, world, state=known, intervene=push)[0]
    assert torch.equal(pushed.h_BH, known[0] + 1) and torch.equal(pushed.acted.untouched[0], known[0])


def test_forced_actions_are_done_and_what_it_would_have_done_is_kept(agent: LSTM, talker: LSTM) -> None:
    draw = torch.Generator().manual_seed(3)
    forced = torch.randint(0, A, (B, 5), generator=draw)
    moments = play(agent, Line(), actions=forced, noise=draws(Line(), 5))
    for t, m in enumerate(moments):
        assert torch.equal(m.action, forced[:, t]) and torch.equal(m.action_BA, one_hot(forced[:, t], (A,), m.h_BH))
        assert not m.action_BA.requires_grad
    assert any(not torch.equal(m.acted.logits_BA.argmax(-1), m.action) for m in moments)
    parts = torch.stack([forced, torch.randint(0, 2, (B, 5), generator=draw)], -1)
    out = trajectory_of(said := play(talker, Line(PARTS), actions=parts))
    assert torch.equal(out.action, parts) and out.logits.shape == (B, 5, 5)
    assert all(torch.equal(m.action_BA, one_hot(parts[:, t], (3, 2), m.h_BH)) for t, m in enumerate(said))
    other = parts.clone()
    other[:, 1, 1] = 1 - other[:, 1, 1]  # the second part alone, at one step
    changed = trajectory_of(play(talker, Line(PARTS), actions=other))
    assert torch.equal(out.d[:, :2], changed.d[:, :2]) and bool((out.d[:, 2] != changed.d[:, 2]).any(-1).all())


def test_several_parts_are_chosen_and_go_on(talker: LSTM) -> None:
    noise = draws(Line(PARTS), 5)
    for some in (None, noise):
        moments = play(talker, Line(PARTS), noise=some)
        for t, m in enumerate(moments):
            scores = m.acted.logits_BA if some is None else m.acted.logits_BA + some[t].action_BA
            assert torch.equal(m.action, torch.stack([scores[:, :3].argmax(-1), scores[:, 3:].argmax(-1)], -1))
        again = play(talker, Line(PARTS), noise=some, actions=trajectory_of(moments).action)
        torch.testing.assert_close(trajectory_of(again).d, trajectory_of(moments).d)


def test_another_way_to_choose(agent: LSTM) -> None:
    def least(acted: Acted, shown: Shown) -> tuple[Tensor, Tensor]:
        index = acted.logits_BA.argmin(-1)
        return index, one_hot(index, (A,), acted.logits_BA)

    out = trajectory_of(play(agent, Line(), choose_by=least))
    assert torch.equal(out.action, out.logits.argmin(-1))
    assert torch.equal(play(agent, Line(), choose_by=least, actions=out.action * 0)[2].action, out.action[:, 2] * 0)


def test_noise_is_each_moment_s_own(agent: LSTM) -> None:
    """World noise from the second moment on, the choice's from the first; a moment without a draw is modal."""
    world, noise = Line(), draws(Line(), 5)
    out = trajectory_of(play(agent, world, noise=noise))
    assert torch.equal(out.action, (out.logits + torch.stack([n.action_BA for n in noise], 1)).argmax(-1))
    x = starts()
    for t in range(1, 5):
        x = 0.75 * x + one_hot(out.action[:, t - 1], (A,), x) @ world.push_AX + 0.5 * noise[t].world
        torch.testing.assert_close(out.d[:, t], x)
    gaps = trajectory_of(play(agent, world, noise=[None, noise[1], None, Noise(), None]))
    forced = trajectory_of(play(agent, world, 1, noise=[None, noise[1]], actions=gaps.action))
    assert torch.equal(gaps.d[:, :2], forced.d[:, :2])
    rest = play(agent, world, 3, z=gaps.d[:, 1], actions=gaps.action[:, 1:])
    torch.testing.assert_close(trajectory_of(rest).d, gaps.d[:, 1:])
    assert torch.equal(gaps.action[:, 2:], gaps.logits[:, 2:].argmax(-1))


def test_endings(agent: LSTM) -> None:
    """Alive until a transition ends it, and never again; without a draw it ends where that is likelier than not."""
    noise = draws(Line(), 30)
    for some in (None, noise, [n._replace(ending_B=None) for n in noise]):
        out = trajectory_of(play(agent, Line(), 29, noise=some))
        chance = torch.full((B, 29), 0.5, dtype=F64)
        if some is noise:
            chance = torch.stack([n.ending_B for n in noise[1:]], 1)
        survived = (out.terminal <= chance).long().cumprod(1).bool()
        assert out.alive[:, 0].all() and torch.equal(out.alive[:, 1:], survived)
        assert some is not noise or not survived[:, -1].all()
    far = torch.full((B, X), 9.0, dtype=F64)  # a first observation that would be an ending is there all the same
    assert play(agent, Line(), 1, z=far)[0].alive_B.all() and not play(agent, Line(), 1, z=far)[1].alive_B.any()


def test_an_ending_that_is_no_number_is_an_ending(agent: LSTM) -> None:
    out = trajectory_of(play(agent, Line(), 2, z=torch.full((B, X), torch.nan, dtype=F64)))
    assert out.alive[:, 0].all() and not out.alive[:, 1:].any()


def test_a_world_that_begins_again(agent: LSTM) -> None:
    """Where it says so the agent has no memory and its clock is 0; interventions go by that clock."""
    world, push = Line(every=3), torch.ones(H, dtype=F64)
    plain = play(agent, world, 7)
    assert [m.t_B[0].item() for m in plain] == [0, 1, 2, 0, 1, 2, 0, 1]
    pushed = play(agent, world, 7, intervene=(AtSteps(AddVector(push), 1, 2),))
    moved = [bool((m.h_BH != flatten(m.acted.untouched)[:, :H]).any()) for m in pushed]
    assert moved == [False, True, False, False, True, False, False, True]
    for t in (3, 6):
        alone = act(agent, plain[t].shown.obs, agent.initial(B), NOT_FIRST, plain[t].t_B)
        assert torch.equal(alone.state[0], plain[t].h_BH) and torch.equal(alone.state[1], plain[t].acted.state[1])


def test_without_an_end_it_goes_on(agent: LSTM) -> None:
    world = Line()
    endless = roll(agent, world, world.start(starts()))
    assert same([next(endless) for _ in range(6)], play(agent, world, 5))


def test_going_on_from_a_moment_is_the_uninterrupted_roll(agent: LSTM) -> None:
    world, noise = Line(), draws(Line(), 9, seed=5)
    forced = torch.randint(0, A, (B, 9), generator=torch.Generator().manual_seed(0))
    push = (AtSteps(AddVector(torch.ones(H, dtype=F64)), 3, 6),)
    for some, actions, forget in ((None, None, False), (noise, None, True), (noise, forced, False)):
        options: dict[str, Any] = {"intervene": push, "forget": forget}
        whole = play(agent, world, 8, noise=some, actions=actions, **options)
        for k in (1, 4, 8):
            at = whole[k]
            before = whole[k - 1].acted
            for known in ({"state": at.acted.untouched}, {"memory": before.untouched if forget else before.state}):
                again = roll(
                    agent, world, (at.world, at.shown), steps=8 - k, noise=None if some is None else some[k:],
                    actions=None if actions is None else actions[:, k:], alive_B=at.alive_B, first=k, **options,
                    **known,
                )  # fmt: skip
                assert same(list(again), whole[k:])
    assert not whole[-1].alive_B.all()  # so that who is there matters


def test_going_on_after_a_moment_is_the_uninterrupted_roll(agent: LSTM) -> None:
    """All rows of it, or some; a place is a tree, so that its rows are cut and joined like any other's."""
    world, noise = Line(), draws(Line(), 9, seed=5)
    push = (AtSteps(AddVector(torch.ones(H, dtype=F64)), 3, 6),)
    for some in (None, noise):
        whole = play(agent, world, 8, noise=some, intervene=push)
        for k in (0, 4):
            rest = None if some is None else some[k + 1 :]
            options: dict[str, Any] = {"steps": 7 - k, "intervene": push, "first": k + 1}
            assert same(list(go_on(agent, world, after(whole[k]), noise=rest, **options)), whole[k + 1 :])
            rows = torch.tensor([3, 0, 3])
            few = None if rest is None else [rows_of_noise(n, rows) for n in rest]
            place = joined([rows_of(after(whole[k]), rows[:1]), rows_of(after(whole[k]), rows[1:])])
            for mine, right in zip(go_on(agent, world, place, noise=few, **options), whole[k + 1 :], strict=True):
                for a, b in zip(numbers(mine), numbers(right), strict=True):
                    torch.testing.assert_close(a, b[rows])
    assert not whole[-1].alive_B.all()
    gaps = rows_of_noise(Noise(ending_B=torch.arange(4.0)), torch.tensor([2, 1]))
    assert gaps.world is None and gaps.action_BA is None and gaps.ending_B is not None
    assert gaps.ending_B.tolist() == [2, 1]


def test_recorded_observations_are_a_world_that_nothing_changes(agent: LSTM) -> None:
    """Shown in order, then held; the agent in it is the agent run over them by hand."""
    whole = trajectory_of(play(agent, Line(), 3))
    world = Recorded(SPEC, whole.obs)
    for forced in (None, torch.zeros(B, 6, dtype=torch.long)):
        out = trajectory_of(list(roll(agent, world, world.begin(), steps=5, actions=forced)))
        for name, x in whole.obs.items():
            assert torch.equal(out.obs[name][:, :4], x) and torch.equal(
                out.obs[name][:, 4:], x[:, 3:].expand(-1, 2, -1)
            )
        torch.testing.assert_close(out.h[:, :4], whole.h)
        assert not out.reward.any() and not out.terminal.any() and out.alive.all() and out.d.shape == (B, 6, 0)
    held = Recorded(SPEC, {k: x[:, :1] for k, x in whole.obs.items()})
    for m in roll(agent, held, held.start(starts()), steps=3):
        assert all(torch.equal(v, whole.obs[k][:, 0]) for k, v in m.shown.obs.items())
    rows = torch.tensor([2, 0])
    (at, shown), *_ = [(m.world, m.shown) for m in roll(agent, world, world.begin(), steps=0)]
    assert at.tolist() == [[b, 0] for b in range(B)]
    assert torch.equal(world.step(at[rows], shown.reward_B[rows])[1].obs["x"], whole.obs["x"][rows, 1])


def test_some_rows_of_a_moment_go_on_alone(agent: LSTM) -> None:
    world, rows = Line(), torch.tensor([2, 0])
    whole = play(agent, world, 6)
    at = whole[2]
    shown = Shown({k: v[rows] for k, v in at.shown.obs.items()}, *rows_of(tuple(at.shown[1:4]), rows))
    begin, state = (rows_of(at.world, rows), shown), rows_of(at.acted.untouched, rows)
    for mine, right in zip(roll(agent, world, begin, state=state, steps=4, first=2), whole[2:], strict=True):
        torch.testing.assert_close(mine.h_BH, right.h_BH[rows])
        torch.testing.assert_close(mine.world.x_BX, right.world.x_BX[rows])
        assert torch.equal(mine.t_B, right.t_B[rows])


# Gradients


def test_env_grads_cuts_action_to_world_and_nothing_else(agent: LSTM) -> None:
    def gradients(env_grads: bool, **options: Any) -> tuple[list[Tensor], Moment]:
        z, push = starts().requires_grad_(), torch.zeros(B, H, dtype=F64, requires_grad=True)
        moments = play(
            agent, Line(), 2, z=z, intervene=(AtSteps(AddVector(push), 0, 1),), env_grads=env_grads, **options
        )
        last = moments[-1]
        of = (last.world.x_BX, last.acted.value_B)
        return [
            torch.autograd.grad(y.sum() + 0 * push.sum(), (z, push), retain_graph=True)[i] for y in of for i in (0, 1)
        ], last

    (z_x, push_x, z_v, push_v), whole = gradients(True)
    (cut_z_x, cut_push_x, cut_z_v, cut_push_v), last = gradients(False)
    assert torch.equal(whole.acted.value_B, last.acted.value_B)  # the forward pass does not change
    assert push_x.abs().max() > 1e-6 and not cut_push_x.any()  # h reaches the world through the action alone
    torch.testing.assert_close(cut_z_x, torch.full_like(z_x, 0.75**2))  # the world's own course is left whole
    assert not torch.equal(z_x, cut_z_x)
    assert cut_push_v.abs().max() > 1e-6 and not torch.equal(push_v, cut_push_v)  # the agent's memory still carries
    # Exactly the gradient of the same roll with the same actions forced, which has no path through them either.
    moments = play(agent, Line(), 2)
    (_, _, forced_z_v, forced_push_v), _ = gradients(True, actions=trajectory_of(moments).action)
    torch.testing.assert_close(cut_push_v, forced_push_v, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(cut_z_v, forced_z_v, rtol=1e-12, atol=1e-14)


def test_a_gate_is_open_or_cut_after_one_forward_pass(agent: LSTM) -> None:
    def pushed(env_grads: bool | Gate) -> tuple[Tensor, Tensor]:
        push = torch.zeros(B, H, dtype=F64, requires_grad=True)
        last = play(agent, Line(), 3, intervene=(AtSteps(AddVector(push), 0, 1),), env_grads=env_grads)[-1]
        return last.acted.value_B.sum() + last.world.x_BX.sum(), push

    gate = Gate()
    y, push = pushed(gate)
    for is_open in (True, False, True):
        gate.open = is_open
        found = torch.autograd.grad(y, push, retain_graph=True)[0]
        right, own = pushed(is_open)
        assert torch.equal(y, right)
        torch.testing.assert_close(found, torch.autograd.grad(right, own)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("noisy", [False, True])
def test_roll_gradcheck(agent: LSTM, talker: LSTM, noisy: bool) -> None:
    """With every discrete choice held, as central differences must have it; of start, memory, both parts of a state
    and interventions."""
    for who, spec in ((agent, SPEC), (talker, PARTS)):
        world = Line(spec)
        draw = torch.Generator().manual_seed(0)
        forced = torch.randint(0, 2, (B, 4) if spec is SPEC else (B, 4, 2), generator=draw)
        noise = draws(world, 4) if noisy else None
        z, h, c, push = (torch.randn(B, n, generator=draw, dtype=F64, requires_grad=True) for n in (X, H, H, H))

        def outputs(
            z: Tensor, h: Tensor, c: Tensor, push: Tensor, who: LSTM = who, world: Line = world,
            forced: Tensor = forced, noise: list[Noise] | None = noise,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            intervene = (AtSteps(AddVector(push), 1, 2),)
            out = trajectory_of(
                play(who, world, 3, z=z, memory=(h, c), actions=forced, noise=noise, intervene=intervene)
            )
            return out.state, out.logits, out.value, out.reward, out.terminal, out.obs["extra"]

        assert torch.autograd.gradcheck(outputs, (z, h, c, push))


def test_the_straight_through_gradient_is_that_of_the_mixed_actions(agent: LSTM) -> None:
    """One turn: d next world / d push is the softmax's Jacobian times what each action does."""
    push = torch.zeros(1, H, dtype=F64, requires_grad=True)
    world, z = Line(), starts(batch=1)
    first, second = play(agent, world, 1, z=z, intervene=(AtSteps(AddVector(push), 0, 1),))
    found = torch.stack([torch.autograd.grad(x, push, retain_graph=True)[0][0] for x in second.world.x_BX[0]])
    p, W = first.acted.logits_BA[0].softmax(-1).detach(), 3 * agent.head.weight[1:]
    want = world.push_AX.T @ (torch.diag(p) - torch.outer(p, p)) @ W
    torch.testing.assert_close(found, want)
