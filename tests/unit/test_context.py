"""The world that sees what it showed, and its loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from agents.recurrent import AgentConfig, RecurrentAgent
from core.contracts import EnvSpec, Field, UserError
from core.roll import Simulator, one_hot
from envs.procgen import ACTION_NAMES
from generative.context import ContextState, ContextWorld
from generative.context_loss import (
    ContextDraws,
    ContextLossConfig,
    context_loss_of,
    decisive_pixels,
    draw_context,
    feedback_at,
    foretell,
    weighted,
    windows_at,
)
from generative.losses import Batch, LossConfig
from generative.rssm import ModelConfig, choose
from generative.simulator import simulator_of

SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=ACTION_NAMES,
    slots=1,
)
TINY = ModelConfig(
    layout="context", deterministic_size=128, hidden_size=8, groups=64, classes=3, depth=2, latent_size=128,
    trunk_blocks=2, joint_outcome=True,
)  # fmt: skip
B, L = 3, 6


def context(motions: int = 1, dtype: torch.dtype = torch.float64) -> Simulator[ContextWorld]:
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=4), SPEC).requires_grad_(False)
    simulator = simulator_of(replace(TINY, motions=motions), agent)
    assert isinstance(simulator.world, ContextWorld)
    with torch.no_grad():  # s and the shifts begin without a voice
        for p in simulator.world.painter.parameters():
            p.add_(0.05 * torch.randn_like(p))
    simulator.world.to(dtype)
    return Simulator(agent.to(dtype), simulator.world, simulator.memory)


def a_batch(dtype: torch.dtype = torch.float64) -> Batch:
    """Windows of which one ends with a transition whose frame nobody saw, one is cut."""
    draw = torch.Generator().manual_seed(1)
    seen, happened = torch.ones(B, L, dtype=torch.bool), torch.ones(B, L, dtype=torch.bool)
    seen[0, 3:], happened[0, 4:] = False, False
    seen[1, 2:], happened[1, 2:] = False, False
    terminal, reward = torch.zeros(B, L, dtype=dtype), torch.zeros(B, L, dtype=dtype)
    terminal[0, 3], reward[0, 3], reward[2, 5] = 1, 10, -1
    return Batch(
        obs={"frames": torch.randint(0, 256, (B, L + 2, 64, 64, 3), dtype=torch.uint8, generator=draw)},
        seen=seen, happened=happened, reward=reward, terminal=terminal,
        action=torch.randint(0, 15, (B, L), generator=draw),
        h=torch.randn(B, L, 4, generator=draw, dtype=dtype),
        state_before=torch.randn(B, 4, generator=draw, dtype=dtype),
        action_before=torch.randint(0, 15, (B,), generator=draw),
    )  # fmt: skip


def in_double(draws: ContextDraws) -> ContextDraws:
    names = ("latent_BZ", "state_BLS", "noise")
    return draws._replace(**{k: x.double() for k, x in draws._asdict().items() if k in names})


@pytest.mark.parametrize("motions", [1, 2])
def test_a_start_shows_the_recorded_frame_and_passes_gradients_to_it(motions: int) -> None:
    world = context(motions).world.requires_grad_(False).eval()
    frames = torch.randint(0, 256, (2, 3, 64, 64, 3), dtype=torch.uint8)
    state, shown = world.begin_at({"frames": frames})
    assert torch.equal(shown.obs["frames"], (frames[:, -1] / 255).double())
    floats = (frames / 255).double().requires_grad_()
    state, again = world.begin_at({"frames": floats})
    assert torch.equal(again.obs["frames"], shown.obs["frames"])
    later = world.step(state, torch.eye(15, dtype=torch.float64)[[1, 2]])[1]
    later.obs["frames"].square().sum().backward()
    assert floats.grad is not None
    assert [bool((floats.grad[:, i].abs().amax((1, 2, 3)) > 0).all()) for i in range(3)] == [motions == 2, True, True]


def test_s_changes_what_is_generated_and_no_copy() -> None:
    world = context().world.eval()
    state, _ = world.begin_at({"frames": torch.randint(0, 256, (2, 3, 64, 64, 3), dtype=torch.uint8)})
    seen = world.look(state.last, state.before)
    sketch = world.sketch(seen, state.last, state.d_BD, torch.eye(15, dtype=torch.float64)[[1, 2]])
    one, two = (choose(x.log_softmax(-1), None) for x in torch.randn(2, 2, 64, 3, dtype=torch.float64))
    assert not torch.equal(world.paint(sketch, one), world.paint(sketch, two))
    with torch.no_grad():
        assert world.painter.masks.bias is not None
        world.painter.masks.bias[-16:] = -1e9  # nothing generated
    assert torch.equal(world.paint(sketch, one), world.paint(sketch, two))


def test_an_untrained_world_mostly_copies() -> None:
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=4), SPEC)
    world = simulator_of(TINY, agent).world
    assert isinstance(world, ContextWorld)
    state, shown = world.begin_at({"frames": torch.full((1, 3, 64, 64, 3), 200, dtype=torch.uint8)})
    later = world.step(state, torch.eye(15)[[0]])[1].obs["frames"]
    assert float((later - shown.obs["frames"]).detach().abs().mean()) < 0.1


@pytest.mark.parametrize("motions", [1, 2])
@pytest.mark.parametrize("feedback", [1, 2, 4])
def test_what_is_foretold_is_what_the_world_does_step_by_step(feedback: int, motions: int) -> None:
    """With its own frames shown to it between the places where it is put back on the recorded way."""
    simulator, batch, config = (
        context(motions),
        a_batch(),
        ContextLossConfig(feedback=(feedback,), feedback_shares=(1.0,)),
    )
    world = simulator.world.eval()
    draws = draw_context(world, B, L, LossConfig(), config, torch.Generator().manual_seed(0), 0.0)
    draws = in_double(draws)
    assert draws.hidden_BL.any() and not draws.hidden_BL.all()
    frames = world.planes_of(batch.obs, 1)
    told, path, seen = foretell(world, batch, frames, draws)
    far = seen.far_NE
    found = torch.zeros(L * B, 3, 64, 64, dtype=torch.float64).index_copy(0, told.at, told.frame.detach())
    assert sorted(told.at.tolist()) == list(range(B, L * B))
    acted = one_hot(batch.action, world.spec.parts, far)
    for b in range(B):
        for place in range(0, L - 1, feedback):
            d, s = world.begin(far[b : b + 1, 0])
            if place:
                d, s = path.d_BLD[b : b + 1, place - 1], path.s_BLS[b : b + 1, place - 1]
            earlier = seen.moved[b : b + 1, place, -2:]
            state = ContextState(frames[b : b + 1, place + 1], frames[b : b + 1, place], earlier, d, s)
            for step in range(place + 1, min(place + 1 + feedback, L)):
                look = world.look(state.last, state.before, state.moved)
                d = world.recall(state.s_BS, acted[b : b + 1, step - 1], state.d_BD, look.far_NE)
                prior, posterior = world.guesses(d, far[b : b + 1, step])
                hidden = bool(draws.hidden_BL[b, place]) or not bool(batch.seen[b, step])
                noise = None if hidden else draws.state_BLS[b : b + 1, step - 1]
                s = choose(prior if hidden else posterior, noise)
                sketch = world.sketch(look, state.last, d, acted[b : b + 1, step - 1])
                frame = world.paint(sketch, s)
                torch.testing.assert_close(found[step * B + b], frame[0])
                if hidden:  # on its own it is what a rollout shows
                    shown = world.step(state, acted[b : b + 1, step - 1])[1]
                    torch.testing.assert_close(shown.obs["frames"][0].permute(2, 0, 1), frame[0].clamp(0, 1))
                state = ContextState(frame.clamp(0, 1), state.last, look.moved[:, :2], d, s)


def test_what_nobody_saw_does_not_count() -> None:
    simulator, batch = context(), a_batch()
    config, losses = ContextLossConfig(motion_share=1.0), LossConfig()
    draws = draw_context(simulator.world, B, L, losses, config, torch.Generator().manual_seed(0), 1.0)
    draws = in_double(draws)._replace(feedback=2)
    loss, parts = context_loss_of(simulator, batch, losses, config, draws)
    assert set(parts) >= {"image", "kl", "motion", "whole", "reward", "terminal", "inverse", "drawn", "latent", "start"}
    other = batch.obs["frames"].clone()
    other[0, 5:], other[1, 4:] = 7, 7  # rows from step 3, and 2, on
    action, reward = batch.action.clone(), batch.reward.clone()
    action[0, 3:], action[1, 2:], reward[0, 4:], reward[1, 2:] = 0, 0, 5, 5
    again = replace(batch, obs={"frames": other}, action=action, reward=reward)
    torch.testing.assert_close(context_loss_of(simulator, again, losses, config, draws)[0], loss)
    loss.backward()
    without = [name for name, p in simulator.world.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not without


def test_the_agents_terms_come_late_and_stay_small() -> None:
    """They are what the agent makes of the frames that the world foretells; however heavy, a share of the image's."""
    simulator, batch = context(), a_batch()
    losses = LossConfig(hidden_weight=1e9, feature_weight=1e9)
    config = ContextLossConfig(agent_from=0.5, agent_cap=0.2, feedback=(2,), feedback_shares=(1.0,))
    early, late = (
        in_double(draw_context(simulator.world, B, L, losses, config, torch.Generator().manual_seed(0), p))
        for p in (0.4, 0.5)
    )
    plain, parts = context_loss_of(simulator, batch, losses, config, early)
    heavy, more = context_loss_of(simulator, batch, losses, config, late)
    assert set(more) - set(parts) == {"hidden", "feature"}
    torch.testing.assert_close(heavy - plain, 0.2 * parts["image"])
    light = replace(losses, hidden_weight=1e-6, feature_weight=2e-6)
    weighed = context_loss_of(simulator, batch, light, config, late)[0]
    torch.testing.assert_close(weighed - plain, 1e-6 * more["hidden"] + 2e-6 * more["feature"], rtol=1e-3, atol=1e-7)
    again = torch.autograd.grad(heavy - plain, simulator.world.painter.residual.weight)[0]
    assert bool((again != 0).any())


def test_the_weight_of_what_happens_leaves_its_probability() -> None:
    """At the least loss the sigmoid of the logit is the share of what happens."""
    happens = torch.zeros(1000, dtype=torch.float64)
    happens[:30] = 1
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([logit], max_iter=50)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = weighted(logit.expand(1000), happens, 20.0).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert float(torch.sigmoid(logit.detach())) == pytest.approx(0.03, abs=1e-4)


def test_feedback_grows_with_the_training() -> None:
    config = ContextLossConfig(feedback=(1, 2, 4, 8), feedback_shares=(0.4, 0.2, 0.2, 0.2))
    assert {feedback_at(0.39, config, c / 10) for c in range(10)} == {1}
    assert {feedback_at(0.41, config, c / 10) for c in range(10)} == {1, 2}
    late = [feedback_at(0.99, config, c / 100) for c in range(100)]
    assert set(late) == {1, 2, 4, 8} and late.count(8) == 50


def test_windows_are_as_long_as_the_feedback_reached() -> None:
    """Of as many transitions always: 8 windows of 9 steps have 64."""
    config = ContextLossConfig(feedback=(1, 2, 4, 8), feedback_shares=(0.4, 0.2, 0.2, 0.2))
    assert [windows_at(p, config, 8, 9) for p in (0, 0.5, 0.7, 1)] == [(64, 2), (32, 3), (16, 5), (8, 9)]
    assert windows_at(1, config, 8, 6) == (8, 6)


def test_a_world_of_other_observations_is_refused() -> None:
    spec = replace(SPEC, obs={"frames": Field(shape=(48, 48, 3), dtype="uint8")})
    with pytest.raises(UserError, match="--layout context is for worlds that show one image of 64 x 64"):
        ContextWorld(TINY, spec, 4)


def test_decisive_pixels_are_those_that_move_policy_and_value() -> None:
    """An agent that looks at one corner alone: all the weight is there, and a mean of 1 a frame."""
    simulator, batch = context(), a_batch()
    agent = simulator.agent
    frames = simulator.world.planes_of(batch.obs, 1)
    first = next(m for m in agent.modules() if isinstance(m, nn.Conv2d))
    everywhere = decisive_pixels(simulator, frames[:, 1:], batch)
    torch.testing.assert_close(everywhere.mean((2, 3)), torch.ones(B, L - 1, dtype=torch.float64))
    assert bool((everywhere > 0).float().mean() > 0.5)

    def only_a_corner(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        corner = torch.zeros_like(given[0])
        corner[..., :16, :16] = given[0][..., :16, :16]
        return (corner,)

    hook = first.register_forward_pre_hook(only_a_corner)
    corner = decisive_pixels(simulator, frames[:, 1:], batch)
    hook.remove()
    assert float(corner[..., 18:, :].max()) == 0 == float(corner[..., 18:].max())
    torch.testing.assert_close(corner.mean((2, 3)), torch.ones(B, L - 1, dtype=torch.float64))
    assert not any(p.grad is not None for p in agent.parameters())


def test_decisive_pixels_weigh_the_image_and_leave_its_error() -> None:
    simulator, batch = context(), a_batch()
    parts = []
    for share in (0.0, 0.5):
        config = ContextLossConfig(decisive_share=share, noise_std=0.0)
        draws = in_double(
            draw_context(simulator.world, B, L, LossConfig(), config, torch.Generator().manual_seed(0), 0)
        )
        parts.append(context_loss_of(simulator, batch, LossConfig(), config, draws)[1])
    assert float(parts[0]["frame_mse"]) == float(parts[1]["frame_mse"])
    assert float(parts[0]["image"]) != float(parts[1]["image"])
