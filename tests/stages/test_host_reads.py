"""How often a training reads a tensor's numbers on the host: on a GPU each time waits until all that was asked of it is
done.  Counted on the CPU, where the same operations are called."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agents import ppo, train as train_agent
from core import config as cli
from core.interventions import AddVector, AtSteps
from core.roll import Gate, roll
from generative import train
from generative.load import load_simulator

# Operations whose result has a size, or is a number, that the host must know.
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::unique_dim", "aten::_unique2", "aten::masked_select"}
BY_MASK = {"aten::index", "aten::index_put", "aten::index_put_"}  # read where an index is a mask
BY_PYTHON = ("tolist", "numpy", "cpu")  # methods that read without one of these operations on the CPU


class Counted(TorchDispatchMode):
    """Counts what is read inside the block."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count, self.patch = 0, patch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        masked = name in BY_MASK and any(x is not None and x.dtype == torch.bool for x in args[1])
        self.count += (name in READS or masked) and not self._of_optimiser()
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Counted:
        for name in BY_PYTHON:
            self.patch.setattr(torch.Tensor, name, self._counting(getattr(torch.Tensor, name)))
        super().__enter__()
        return self

    def __exit__(self, *about: Any) -> None:
        super().__exit__(*about)
        self.patch.undo()

    @staticmethod
    def _of_optimiser() -> bool:
        """How many steps were done lies on the CPU, wherever the weights are."""
        return any("torch/optim" in frame.filename for frame in traceback.extract_stack(limit=12))

    def _counting(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def counting(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
            self.count += 1
            return read(tensor, *args, **more)

        return counting


def test_a_read_is_counted() -> None:
    x = torch.ones(3)
    reads: list[Callable[[], Any]] = [lambda: float(x[0]), lambda: bool(x.isfinite().all()), x.nonzero,
                                      lambda: x[x > 0], lambda: x.tolist(), lambda: x.cpu()]  # fmt: skip
    for read in reads:
        with Counted(pytest.MonkeyPatch()) as counted:
            read()
        assert counted.count == 1
    with Counted(pytest.MonkeyPatch()) as counted:
        torch.where(x > 0, x, -x).sum()
    assert counted.count == 0


@pytest.mark.parametrize(
    ("world", "most"),
    [
        ("--layout vector", 1),
        ("--layout residual", 2),  # also in which steps all is seen
        ("--layout grid --deterministic_size 64 --hidden_size 8 --groups 64 --classes 2 --latent_size 64", 1),
        # Also which feedback is drawn, and for which steps shifts are costed.
        ("--layout context --trunk_blocks 1 --deterministic_size 64 --hidden_size 8 --groups 64 --classes 2 --depth 2 "
         "--latent_size 64", 3),
    ],
)  # fmt: skip
def test_updates_of_a_simulator(
    world: str, most: int, pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, update = [], train.Trainer.update

    def counting(self: train.Trainer) -> None:
        with Counted(pytest.MonkeyPatch()) as counted:
            update(self)
        found.append(counted.count)

    monkeypatch.setattr(train.Trainer, "update", counting)
    words = f"--preset debug --threads 1 --agent {pipeline}/agent --rollouts {pipeline}/rollouts --out {tmp_path}/out"
    train.main(cli.parse(train.GenTrainConfig, [*words.split(), *world.split()], train.STAGE))
    assert found and max(found) <= most, found


@pytest.mark.parametrize("more", ["", "--policy semantic --env_name chaser --refresh 1 --score_max 0.1"])
def test_minibatches_of_ppo(more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []
    update = ppo.update

    def counting(agent: Any, optimiser: Any, r: Any, config: ppo.PPOConfig, *rest: Any, **named: Any) -> Any:
        with Counted(pytest.MonkeyPatch()) as counted:
            out = update(agent, optimiser, r, config, *rest, **named)
        found.append((counted.count - 1) / (config.epochs * config.minibatches))  # explained variance: once
        return out

    monkeypatch.setattr("agents.trainer.update", counting)
    words = f"--preset debug --threads 1 --out {tmp_path}/out {more}".split()
    train_agent.main(cli.parse(train_agent.TrainConfig, words, train_agent.STAGE))
    assert found and max(found) <= 1, found


def test_simulated_steps_and_their_gradients() -> None:
    simulator = load_simulator(Path("bundles/coinrun-robust/simulator"))
    agent, world = simulator.agent, simulator.world
    z_BZ = world.normalise(torch.randn(2, world.latent_size, generator=torch.Generator().manual_seed(0)))
    z_BZ.requires_grad_()
    push = AtSteps(AddVector(torch.ones(agent.points["h"])), 1, 2)
    with Counted(pytest.MonkeyPatch()) as counted:
        moments = list(roll(agent, world, world.start(z_BZ), steps=4, intervene=(push,), env_grads=Gate()))
        moments[-1].acted.value_B.sum().backward()  # type: ignore[no-untyped-call]
    assert z_BZ.grad is not None and counted.count == 0
