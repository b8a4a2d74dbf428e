"""Weight gradients found once for all steps are those that autograd finds step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from agents.recurrent import AgentConfig, RecurrentAgent
from benchmarks.stepwise import loss_stepwise
from core.contracts import EnvSpec, Field
from core.roll import Simulator
from core.trees import Tree, flatten, leaves, where
from envs.procgen import ACTION_NAMES
from generative.losses import Batch, LossConfig, draw, loss_of
from generative.recurrence import unroll
from generative.recurrent_world import RSSMWorld
from generative.rssm import ModelConfig
from generative.simulator import simulator_of

B, L = 3, 5


class Toy(nn.Module):
    """Two carries, one further output; a weight used twice and a flag as input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 4), nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a_next = torch.tanh(self.first(torch.cat([a, b], -1)))
        shown = self.second(a_next + x)
        b_next = torch.where(seen[:, None], shown.sin(), self.second(a_next))
        return a_next, b_next, shown * b_next


def test_unroll_has_the_gradients_of_the_plain_loop() -> None:
    torch.manual_seed(0)
    cell = Toy().double()
    a, b = (torch.randn(B, n, dtype=torch.float64, requires_grad=True) for n in (4, 3))
    x = torch.randn(B, L, 4, dtype=torch.float64, requires_grad=True)
    seen = torch.rand(B, L) < 0.5
    weights = [torch.randn(B, L, n, dtype=torch.float64) for n in (4, 3, 3)]

    def loss(outputs: tuple[Tensor, ...]) -> Tensor:
        return torch.stack([(w * y**2).sum() for w, y in zip(weights, outputs, strict=True)]).sum()

    leaves = [a, b, x, *cell.parameters()]
    found = torch.autograd.grad(loss(unroll(cell, (a, b), (x, seen))), leaves)
    rows, carry = [], (a, b)
    for i in range(L):
        out = cell(*carry, x[:, i], seen[:, i])
        carry = out[:2]
        rows.append(out)
    plain = tuple(torch.stack(column, 1) for column in zip(*rows, strict=True))
    for mine, right in zip(found, torch.autograd.grad(loss(plain), leaves), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)
    cell.requires_grad_(False)  # a frozen cell goes the plain way, and may be differentiated twice
    again = unroll(cell, (a, b), (x, seen))
    assert all(torch.equal(y, p) for y, p in zip(again, plain, strict=True))
    assert torch.autograd.gradgradcheck(lambda a: unroll(cell, (a, b), (x[:, :2], seen[:, :2]))[0], (a,))


def a_batch(sim: Simulator[RSSMWorld], generator: torch.Generator) -> Batch:
    """Windows of which one ends with a terminal step whose frame is unseen, one is cut."""
    first = sim.world.initial_frames - 1
    seen, happened = torch.ones(B, L, dtype=torch.bool), torch.ones(B, L, dtype=torch.bool)
    seen[0, 3:], happened[0, 4:] = False, False
    seen[1, 2:], happened[1, 2:] = False, False
    terminal = torch.zeros(B, L)
    terminal[0, 3] = 1
    return Batch(
        obs={"frames": torch.randint(0, 256, (B, first + L, 64, 64, 3), dtype=torch.uint8, generator=generator)},
        seen=seen,
        happened=happened,
        reward=torch.randn(B, L, generator=generator),
        terminal=terminal,
        action=torch.randint(0, 15, (B, L), generator=generator),
        h=torch.randn(B, L, sim.agent.points["h"], generator=generator),
        state_before=torch.randn(B, flatten(sim.agent.initial(1)).shape[1], generator=generator),
        action_before=torch.randint(0, 15, (B,), generator=generator),
    )


class Remembering(RecurrentAgent):
    """An agent whose state is more than h: (h, c) of an LSTM."""

    def __init__(self, config: AgentConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.lstm = nn.LSTMCell(config.embedding_size, config.hidden_size)

    def initial(self, batch: int) -> Tree:
        h = super().initial(batch)
        return h, torch.zeros_like(h)

    def advance(self, seen: Tensor, state: Tree, is_first_B: Tensor) -> Tree:
        return tuple(self.lstm(seen, where(is_first_B, self.initial(len(seen)), state)))

    def heads(self, seen: Tensor, state: Tree) -> tuple[Tensor, Tensor]:
        return super().heads(seen, state[0])

    def read(self, point: str, seen: Tensor, state: Tree) -> Tensor:
        return super().read(point, seen, state[0])


@pytest.mark.parametrize(
    ("latent", "kind"),
    [("gaussian", RecurrentAgent), ("hypersphere", RecurrentAgent), ("gaussian", Remembering)],
)
def test_loss_and_gradients_are_the_step_by_step_oracles(latent: str, kind: type[RecurrentAgent]) -> None:
    torch.manual_seed(0)
    spec = EnvSpec(
        env_id="procgen/coinrun",
        obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
        action_names=ACTION_NAMES,
        slots=1,
    )
    agent = kind(AgentConfig(encoder="strided", embedding_size=8, hidden_size=4), spec).requires_grad_(False)
    model = ModelConfig(
        deterministic_size=12, hidden_size=16, groups=3, classes=4, depth=2, head_layers=2, latent_size=6,
        latent=latent,  # type: ignore[arg-type]
    )  # fmt: skip
    sim = simulator_of(model, agent)
    generator = torch.Generator().manual_seed(1)
    # Every weight different, so that no term hides behind another.
    config = LossConfig(
        image_std=0.5, kl_weight=1.5, kl_balance=0.7, reward_weight=2.0, terminal_weight=3.0, hidden_weight=0.9,
        slowness_weight=0.8, latent_weight=0.6, start_weight=1.2, open_loop_share=0.6, feature_weight=0.4,
    )  # fmt: skip
    batch, draws = a_batch(sim, generator), draw(sim.world, B, L, config, generator)
    assert draws.hidden_B.any() and not draws.hidden_B.all()
    ours, right = loss_of(sim, batch, config, draws)[0], loss_stepwise(sim, batch, config, draws)
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=0)
    names = [name for name, _ in sim.world.named_parameters()]
    found, expected = (torch.autograd.grad(x, list(sim.world.parameters())) for x in (ours, right))
    for name, mine, oracle in zip(names, found, expected, strict=True):
        largest = float(oracle.abs().max())
        assert largest > 0 or name.startswith("infer_head"), name  # a hypersphere has no spread to learn
        torch.testing.assert_close(mine, oracle, rtol=1e-4, atol=1e-4 * largest, msg=name)
    # And from the memory that is trained with it, whole, it can be rolled out.
    z = torch.randn(B, sim.world.latent_size, generator=generator)
    remembered = sim.remembered(z)
    assert [x.shape for x in leaves(remembered)] == [x.shape for x in leaves(agent.initial(B))]
    assert all(x.std() > 0 for x in leaves(remembered)) and bool((flatten(remembered).abs() < 1).all())
    assert sim.rollout(z, 2).state.shape == (B, 3, flatten(agent.initial(1)).shape[1])
