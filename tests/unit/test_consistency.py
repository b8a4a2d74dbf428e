"""The consistency term of the agent's training: the augmentation, the loss against its definition, what it refuses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from agents.consistency import ConsistencyOptions, alter, augment, axis_matrix, consistent_loss_of
from agents.ppo import PPOConfig, Rollout, loss_of
from agents.recurrent import AgentConfig, RecurrentAgent
from core.contracts import EnvSpec, Field, UserError

T, B = 5, 6
SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=tuple("abcd"),
    slots=B,
)
CONFIG = PPOConfig(envs=B, rollout_steps=T)


def frames_of(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (*shape, 64, 64, 3), generator=generator, dtype=torch.uint8)


def agent_of() -> RecurrentAgent:
    """With a policy that tells frames apart (it starts near uniform)."""
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided_blur", embedding_size=8, hidden_size=6), SPEC)
    with torch.no_grad():
        agent.policy.weight.mul_(300)
    return agent


def rollout_of() -> tuple[Rollout, Tensor]:
    """A rollout of noise in which an episode begins within, and its advantages."""
    g = torch.Generator().manual_seed(1)
    is_first = torch.zeros(T, B, dtype=torch.bool)
    is_first[2, 1] = is_first[0, 3] = True
    number = {name: torch.randn(T, B, generator=g) for name in ("logp", "value", "reward", "advantage")}
    rollout = Rollout(
        obs={"frames": frames_of(T, B)},
        is_first=is_first,
        action=torch.randint(0, 4, (T, B), generator=g),
        logp=number["logp"] - 2,
        value=number["value"],
        reward=number["reward"],
        done=torch.zeros(T, B, dtype=torch.bool),
        state_first=torch.randn(B, 6, generator=g),
        next_value=torch.zeros(B),
    )
    return rollout, number["advantage"]


def gradients(loss: Tensor, agent: RecurrentAgent) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(agent.parameters()))])


# The augmentation


def test_unaltered_frames_are_the_same_to_the_bit() -> None:
    frames = frames_of(2)
    assert torch.equal(alter(frames), frames.float() / 255)
    assert torch.equal(alter(frames.float() / 255), frames.float() / 255)


@given(st.integers(-5, 5), st.integers(-5, 5), st.integers(0, 2**31 - 1))
@settings(max_examples=25, deadline=None)
def test_a_shift_moves_whole_pixels_and_repeats_the_edge(down: int, right: int, seed: int) -> None:
    frames = frames_of(2, seed=seed)
    by_hand = np.pad(frames.numpy(), ((0, 0), (5, 5), (5, 5), (0, 0)), mode="edge")
    by_hand = by_hand[:, 5 - down : 69 - down, 5 - right : 69 - right]
    assert torch.equal(alter(frames, down, right), torch.from_numpy(by_hand.copy()).float() / 255)


@given(st.floats(0, 1), st.integers(-4, 4))
@settings(max_examples=25, deadline=None)
def test_a_blur_keeps_the_range_and_the_mean_of_a_flat_picture(weight: float, by: int) -> None:
    torch.testing.assert_close(axis_matrix(64, by, weight).sum(1), torch.ones(64))
    assert (axis_matrix(64, by, weight) >= 0).all()
    out = alter(frames_of(1), by, -by, weight)
    assert out.dtype == torch.float32 and out.min() >= 0 and out.max() <= 1 + 1e-6
    flat = torch.full((1, 64, 64, 3), 255, dtype=torch.uint8)
    torch.testing.assert_close(alter(flat, by, by, weight), torch.ones(1, 64, 64, 3))


def test_a_whole_blur_is_the_mean_over_3_x_3_pixels() -> None:
    frames = frames_of(2)
    padded = torch.nn.functional.pad((frames.float() / 255).permute(0, 3, 1, 2), (1, 1, 1, 1), mode="replicate")
    want = torch.nn.functional.avg_pool2d(padded, 3, 1).permute(0, 2, 3, 1)
    torch.testing.assert_close(alter(frames, blur=1.0), want)
    torch.testing.assert_close(alter(frames, 2, 1, 1.0), alter(alter(frames, 2, 1), blur=1.0))


def test_a_sequence_is_altered_as_one_and_sequences_differ() -> None:
    still = frames_of(1, B).expand(T, -1, -1, -1, -1)
    options = ConsistencyOptions(max_shift=4, max_blur=1.0)
    out = augment(still, options, np.random.default_rng(0))
    assert out.shape == (T, B, 64, 64, 3) and out.dtype == torch.float32
    assert all(torch.equal(out[0], out[t]) for t in range(T))
    plain = still.float() / 255
    change = (out - plain).abs().flatten(2).mean(-1)[0]
    assert len(set(change.tolist())) == B
    assert torch.equal(out, augment(still, options, np.random.default_rng(0)))
    assert not torch.equal(out, augment(still, options, np.random.default_rng(1)))


def test_shifts_reach_their_bound_and_no_further() -> None:
    """A bright row and column in the middle of a dark picture lie where the shift put them."""
    frames = torch.zeros(1, 400, 64, 64, 3, dtype=torch.uint8)
    frames[:, :, 32, 32] = 255
    out = augment(frames, ConsistencyOptions(max_shift=3), np.random.default_rng(0))
    at = out[0, ..., 0].flatten(1).argmax(1)
    down, right = at // 64 - 32, at % 64 - 32
    assert set(down.tolist()) == set(right.tolist()) == set(range(-3, 4))
    assert len(set(zip(down.tolist(), right.tolist(), strict=True))) == 49


# The loss


def test_without_an_alteration_the_term_is_zero_and_the_loss_is_ppos() -> None:
    agent, (r, advantage), columns = agent_of(), rollout_of(), torch.tensor([4, 1, 3, 0])
    options = ConsistencyOptions(consistency=1.0, consistency_share=0.5, max_shift=0)
    loss, parts = consistent_loss_of(options, np.random.default_rng(0))(agent, r, advantage, columns, CONFIG, 0.01)
    want, parts_of_ppo = loss_of(agent, r, advantage, columns, CONFIG, 0.01)
    assert parts["consistency_kl"].abs() < 1e-6 and parts["consistency_value"] < 1e-9 and parts["same_choice"] == 1
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(gradients(loss, agent), gradients(want, agent), rtol=1e-4, atol=1e-6)
    for name, value in parts_of_ppo.items():
        torch.testing.assert_close(parts[name], value)


def test_the_term_is_its_definition_and_flows_back_through_the_augmented_view_alone() -> None:
    agent, (r, advantage), columns = agent_of(), rollout_of(), torch.tensor([4, 1, 3, 0])
    options = ConsistencyOptions(consistency=0.3, consistency_share=0.5, max_shift=4, max_blur=1.0)
    loss, parts = consistent_loss_of(options, np.random.default_rng(7))(agent, r, advantage, columns, CONFIG, 0.01)
    ppo, _ = loss_of(agent, r, advantage, columns, CONFIG, 0.01)
    few = columns[:2]
    seen = augment(r.obs["frames"][:, few], options, np.random.default_rng(7))
    h = h_clean = r.state_first[few]
    kl, error, same = torch.zeros(()), torch.zeros(()), []
    for t in range(T):
        e, clean = (agent.encode({"frames": x}) for x in (seen[t], r.obs["frames"][t, few]))
        h, h_clean = agent.advance(e, h, r.is_first[t, few]), agent.advance(clean, h_clean, r.is_first[t, few])
        logits, value = agent.heads(e, h)
        target, value_clean = (x.detach() for x in agent.heads(clean, h_clean))
        of = [torch.distributions.Categorical(logits=x) for x in (target, logits)]
        kl = kl + torch.distributions.kl_divergence(*of).mean() / T
        error = error + (value - value_clean).square().mean() / T
        same += (logits.argmax(-1) == target.argmax(-1)).tolist()
    assert kl > 1e-3 and error > 1e-5
    torch.testing.assert_close(parts["consistency_kl"], kl, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parts["consistency_value"], error, rtol=1e-4, atol=1e-6)
    assert float(parts["same_choice"]) == pytest.approx(np.mean(same))
    torch.testing.assert_close(loss, ppo + 0.3 * (kl + error), rtol=1e-5, atol=1e-6)
    want = gradients(ppo + 0.3 * (kl + error), agent)
    torch.testing.assert_close(gradients(loss, agent), want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))


def test_the_divergence_of_actions_of_several_parts_is_the_sum_over_them() -> None:
    """Of a softmax over all numbers together a part that is the same in both views would change with the other."""
    agent, (r, advantage), columns = agent_of(), rollout_of(), torch.tensor([4, 1, 3, 0])
    agent.spec = replace(SPEC, action_parts={"go": 3, "jump": 1})
    r = replace(r, action=torch.stack([r.action % 3, torch.zeros_like(r.action)], -1))
    options = ConsistencyOptions(consistency=0.3, consistency_share=0.5)
    _, parts = consistent_loss_of(options, np.random.default_rng(7))(agent, r, advantage, columns, CONFIG, 0.01)
    agent.spec = replace(SPEC, action_names=SPEC.action_names[:3])
    with torch.no_grad():  # a part of one choice tells nothing
        alone = deepcopy(agent)
        alone.policy = torch.nn.Linear(agent.config.hidden_size, 3)
        alone.policy.weight[:], alone.policy.bias[:] = agent.policy.weight[:3], agent.policy.bias[:3]
    r = replace(r, action=r.action[..., 0])
    _, want = consistent_loss_of(options, np.random.default_rng(7))(alone, r, advantage, columns, CONFIG, 0.01)
    assert want["consistency_kl"] > 1e-4
    torch.testing.assert_close(parts["consistency_kl"], want["consistency_kl"], rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(parts["same_choice"], want["same_choice"])


# What does not fit


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"consistency": -0.1}, "--consistency must be at least 0"),
        ({"max_shift": -1}, "--max_shift must be at least 0"),
        ({"max_shift": 64}, "--max_shift must be below 64"),
        ({"max_blur": 1.5}, "--max_blur at most 1"),
        ({"consistency_share": 0.0}, "--consistency_share above 0"),
        ({"consistency": 0.1, "max_shift": 0}, "without an augmentation does nothing"),
    ],
)
def test_options_that_do_not_fit_are_refused(changed: dict[str, float], said: str) -> None:
    with pytest.raises(UserError, match=said):
        ConsistencyOptions(**changed).check(agent_of())  # type: ignore[arg-type]


def test_an_agent_of_vectors_has_no_frames_to_augment() -> None:
    spec = EnvSpec(env_id="x", obs={"x": Field(shape=(3,), dtype="float32")}, action_names=("a", "b"), slots=1)
    agent = RecurrentAgent(AgentConfig(encoder="mlp"), spec)
    ConsistencyOptions().check(agent)
    with pytest.raises(UserError, match="an agent of vectors"):
        ConsistencyOptions(consistency=0.1).check(agent)
