"""The oracle: the simulator's training loss computed plainly, one step of the window after the other.

Frames are encoded, decoded and shown to the agent inside the loop, and every term is summed as it
comes.  ``generative.losses.loss_of`` must give the same loss and the same gradients
(tests/unit/test_recurrence.py), and must be several times faster (benchmarks/simulator.py).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from core.roll import Simulator, one_hot
from core.trees import detached, each, flatten, unflatten
from generative.fields import loss_of_field
from generative.losses import Batch, Draws, LossConfig, uniformity
from generative.recurrent_world import RSSMWorld
from generative.rssm import choose, kl


def loss_stepwise(simulator: Simulator[RSSMWorld], batch: Batch, config: LossConfig, draws: Draws) -> Tensor:
    """The loss of ``loss_of`` (a scalar), from the same draws."""
    sim, agent = simulator.world, simulator.agent
    first = sim.initial_frames - 1
    size, length = batch.seen.shape

    def frame_at(i: int) -> dict[str, Tensor]:
        return {name: x[:, i] for name, x in batch.obs.items()}

    initial = [sim.embed_obs(frame_at(i)) for i in range(first + 1)]
    mean, log_std = sim.infer_from(torch.stack(initial, 1))
    if sim.config.latent == "gaussian":
        z = mean + log_std.exp() * draws.latent_BZ
        latent = (0.5 * (mean**2 + (2 * log_std).exp() - 1) - log_std).sum(-1).mean()
    else:
        z, latent = mean, uniformity(mean)
    begun = sim.begin(z, z.detach())
    d, s, remembered = begun.state.d_BD, begun.state.s_BS, begun.memory_BS
    guessed, done = sim.start_agent(z.detach())[:, sim.memory_size :], batch.action_before.reshape(size, -1)
    choices = guessed.split(list(sim.spec.parts), 1)
    start_action = torch.stack([F.cross_entropy(x, done[:, part]) for part, x in enumerate(choices)]).sum()
    loss = 0.5 * (remembered - batch.state_before).square().sum(-1).mean() + start_action
    loss = config.start_weight * loss + config.latent_weight * latent
    last = one_hot(batch.action_before, sim.spec.parts, z)
    state = unflatten(remembered, agent.initial(size))
    not_first = torch.zeros(size, dtype=torch.bool, device=z.device)
    for i in range(length):
        frame = frame_at(first + i)
        seen, happened = batch.seen[:, i], batch.happened[:, i]
        shown = seen & ~(draws.hidden_B & (i >= draws.first_hidden_B))
        before = d
        d = sim.rssm.transition(s, last, d)
        prior = sim.rssm.prior(d)
        posterior = sim.rssm.posterior(d, initial[first] if i == 0 else sim.embed_obs(frame))
        s = torch.where(shown[:, None], choose(posterior, draws.state_BLS[:, i]), choose(prior, None))
        last = one_hot(batch.action[:, i], sim.spec.parts, z)

        said = sim.foretell(d, s)
        decoded = sim.show(said)
        target, observation = {}, torch.zeros_like(seen, dtype=z.dtype)
        for name, field in sim.fields.items():
            target[name] = frame[name].to(z.dtype) / 255 if field.means == "image" else frame[name].to(z.dtype)
            error = loss_of_field(field, said[name], target[name], sim.scales[name])
            weight = 1 / (2 * config.image_std**2) if field.means == "image" else config.vector_weight
            observation = observation + weight * error
        forward, backward = kl(posterior.detach(), prior), kl(posterior, prior.detach())
        divergence = config.kl_balance * forward + (1 - config.kl_balance) * backward
        reward = 0.5 * (sim.reward_head(d)[:, 0] - batch.reward[:, i]) ** 2
        ended = sim.terminal_head(d)[:, 0]
        terminal = F.binary_cross_entropy_with_logits(ended, batch.terminal[:, i], reduction="none")
        with sim.precision.cast(z.device):
            agent_seen = each(lambda x: x.to(z.dtype), agent.encode(decoded))
        state = agent.advance(agent_seen, state if i == 0 else detached(state), not_first)
        agent_h = 0.5 * (agent.read("h", agent_seen, state) - batch.h[:, i]).square().sum(-1)
        feature = torch.zeros_like(agent_h)
        if config.feature_weight:
            with torch.no_grad(), sim.precision.cast(z.device):
                real = each(lambda x: x.to(z.dtype), agent.encode(target))
            feature = 0.5 * (flatten(agent_seen) - flatten(real)).square().sum(-1)
        slow = ((d - before).square().sum(-1) + 1e-8).sqrt()

        seen_terms = observation + config.hidden_weight * agent_h + config.feature_weight * feature
        transition_terms = (
            config.reward_weight * reward + config.terminal_weight * terminal + config.slowness_weight * slow
        )
        per_window = seen_terms * seen + config.kl_weight * divergence * shown + transition_terms * happened
        loss = loss + per_window.mean()
    return loss
