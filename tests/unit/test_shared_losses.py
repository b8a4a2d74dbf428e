"""The losses of a minibatch that several processes share: what they average is that of one process.

Run as a script (by torchrun in the test below) this file saves what two processes find.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.consistency import ConsistencyOptions, consistent_loss_of
from agents.ppo import PPOConfig, Rollout, loss_of, update
from agents.recurrent import AgentConfig, RecurrentAgent
from agents.semantic import Controller, SemanticAgent, SemanticOptions, semantic_loss_of
from core.contracts import EnvSpec, Field
from core.ranks import Processes, from_torchrun

ROOT = Path(__file__).resolve().parent.parent.parent
T, B, H = 3, 8, 6
SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=tuple("abcd"),
    slots=B,
)
# The options of the loss, the recurrence and what a minibatch is drawn from.
CASES: dict[str, tuple[SemanticOptions | ConsistencyOptions | None, str, str]] = {
    "plain": (None, "gru", "environments"),
    "semantic": (SemanticOptions(codes=3, beta=0.5), "gru", "environments"),
    "semantic of steps": (SemanticOptions(codes=3, ordinal=True), "features", "steps"),
    "codes by gradient": (SemanticOptions(codes=3, codebook_rate=0.0, beta=0.5), "features", "environments"),
    "consistency": (ConsistencyOptions(consistency=0.5, consistency_share=0.75, max_blur=1), "gru", "environments"),
    "consistency of one sequence": (ConsistencyOptions(consistency=0.5), "gru", "environments"),  # of one process alone
}


def rollout_of() -> Rollout:
    g = torch.Generator().manual_seed(1)
    number = {name: torch.randn(T, B, generator=g) for name in ("logp", "value", "reward")}
    is_first = torch.zeros(T, B, dtype=torch.bool)
    is_first[2, 1] = is_first[0, 3] = True
    return Rollout(
        obs={"frames": torch.randint(0, 256, (T, B, 64, 64, 3), generator=g, dtype=torch.uint8)}, is_first=is_first,
        action=torch.randint(0, 4, (T, B), generator=g), logp=number["logp"] - 2, value=number["value"],
        reward=number["reward"], done=is_first, state_first=torch.randn(B, H, generator=g), next_value=torch.zeros(B),
    )  # fmt: skip


def found(case: str, processes: Processes) -> dict[str, Tensor]:
    """Of one pass of two minibatches: the gradient of the second, the codebook, and the means of the logged parts."""
    options, recurrence, drawn_from = CASES[case]
    torch.manual_seed(0)
    net = AgentConfig(encoder="strided", embedding_size=H, hidden_size=H, recurrence=recurrence)  # type: ignore[arg-type]
    agent: RecurrentAgent
    loss: Callable[..., Any] = loss_of
    if isinstance(options, SemanticOptions):
        agent, loss = SemanticAgent(net, SPEC, options), semantic_loss_of(options, Controller(1, 10, weight=0.5))
    else:
        agent = RecurrentAgent(net, SPEC)
        if options is not None:
            loss = consistent_loss_of(options, np.random.default_rng(3))
    with torch.no_grad():
        agent.policy.weight.mul_(300)
    ppo = PPOConfig(epochs=1, minibatches=2, minibatch_of=drawn_from, max_grad_norm=1e12)  # type: ignore[arg-type]
    still = torch.optim.SGD(agent.parameters(), lr=0.0)
    logs = update(agent, still, rollout_of(), ppo, np.random.default_rng(5), 0.01, loss, processes)
    out = {f"log {name}": torch.tensor(value, dtype=torch.float64) for name, value in logs.items()}
    out |= {f"gradient of {k}": p.grad for k, p in agent.named_parameters() if p.grad is not None}
    if isinstance(agent, SemanticAgent):
        out["codebook"] = agent.codebook_C2.detach()
    return out


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    """What each of two processes finds, case by case."""
    root = tmp_path_factory.mktemp("shared_losses")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [*launch, __file__, str(root)]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(root / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_losses_and_gradients_of_one(
    case: str, of_two: list[dict[str, dict[str, Tensor]]]
) -> None:
    one, ranks = found(case, Processes()), [of[case] for of in of_two]
    largest = max(float(x.abs().max()) for k, x in one.items() if k.startswith("gradient"))
    assert largest > 0
    for two in ranks:
        assert one.keys() == two.keys()
        for name, x in one.items():
            scale = largest if name.startswith("gradient") else float(x.abs().max())
            assert (two[name] - x).abs().max() <= 1e-5 * max(scale, 1e-3), name
    assert all(torch.equal(ranks[0][name], x) for name, x in ranks[1].items())  # no process goes its own way


if __name__ == "__main__":
    processes = from_torchrun(B)
    torch.save({case: found(case, processes) for case in CASES}, Path(sys.argv[1]) / f"{processes.rank}.pt")
