"""The training that all PPO agents share: collect, update, log, save, stop, go on; the worlds are a Collector's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from agents.ppo import PPOConfig, Rollout, update
from core import artefacts
from core.contracts import UserError
from core.progress import bar
from core.training import STATE, Log, Stop, load_state, rng_states, save_state, set_rng_states


class Collector(Protocol):
    """Steps the worlds with the agent and keeps what goes on between rollouts."""

    def collect(self) -> Rollout: ...

    @property
    def collected(self) -> int:
        """Steps of the last rollout."""
        ...

    def means(self) -> dict[str, float]:
        """Of the last lives that ended, for the curve."""
        ...

    def state(self) -> dict[str, Any]:
        """What --resume goes on from."""
        ...

    def restore(self, state: dict[str, Any], step: int) -> None: ...


@dataclass
class Trainer:
    """A training as it stands.  ``total`` and ``spacing`` (between checkpoints) are in steps."""

    config: Any  # with ppo, out, resume, save_minutes, track
    agent: torch.nn.Module
    collector: Collector
    loss: Callable[..., Any]
    run: artefacts.Run
    rng: np.random.Generator
    device: torch.device
    total: int
    spacing: int
    note: Callable[[dict[str, float]], str]  # beside the bar
    more: dict[str, Any] = field(default_factory=dict)  # goes into the training state as it is
    beside: Callable[[list[dict[str, Any]]], None] | None = None  # writes the curve's rows in another form too
    held_out: Callable[[], dict[str, float]] | None = None  # what is measured beside training, for the curve
    every: int = 0  # steps between two of these
    step: int = field(init=False, default=0)
    _before: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.Adam(self.agent.parameters(), lr=self.ppo.learning_rate, eps=1e-5)
        self._file = self.run.path / STATE
        if self.config.resume:
            state = load_state(self._file)
            self.agent.load_state_dict(state["agent"])
            self.optimiser.load_state_dict(state["optimiser"])
            set_rng_states(state["torch_rng"])
            self.rng.bit_generator.state = state["numpy_rng"]
            self.step, self._before = state["step"], state["wall_s"]
            self.collector.restore(state["collector"], self.step)
        self.log = Log(self.run.path, self.config, self.config.track, keep=self.step if self.config.resume else None)
        self._began = time.time()

    @property
    def ppo(self) -> PPOConfig:
        ppo: PPOConfig = self.config.ppo
        return ppo

    def wall(self) -> float:
        """Seconds of training, those before a stop included."""
        return self._before + time.time() - self._began

    def save(self) -> None:
        """What --resume goes on from."""
        self.log.save()
        if self.beside is not None:
            self.beside(self.log.rows)
        save_state(
            self._file, agent=self.agent.state_dict(), optimiser=self.optimiser.state_dict(),
            collector=self.collector.state(), torch_rng=rng_states(self.device),
            numpy_rng=self.rng.bit_generator.state, step=self.step, wall_s=self.wall(), **self.more,
        )  # fmt: skip

    def _update(self) -> None:
        ppo, left = self.ppo, 1 - self.step / self.total
        self.optimiser.param_groups[0]["lr"] = ppo.learning_rate * (left if ppo.anneal else 1.0)
        entropy_coef = ppo.entropy_coef * (left if ppo.anneal_entropy else 1.0)
        rollout = self.collector.collect()
        try:
            logs = update(self.agent, self.optimiser, rollout, ppo, self.rng, entropy_coef, self.loss)
        except FloatingPointError as error:
            raise UserError(
                f"training stopped at step {self.step}: {error}; --resume goes on from the last save"
            ) from None
        before, self.step = self.step, self.step + self.collector.collected
        measured: dict[str, float] = {}
        if self.held_out and (self.step // self.every > before // self.every or self.step >= self.total):
            measured = self.held_out()
        self.log.add(self.step, **self.collector.means(), wall_s=self.wall(), **logs, **measured)

    def train(self, stop: Stop) -> bool:
        """To the last step, or to where ``stop`` is due; the state is saved.  Whether it was stopped."""
        saved = time.time()
        with bar("training", total=self.total, unit="steps") as progress, stop:
            progress.advance(self.step)
            while self.step < self.total:
                before = self.step
                self._update()
                progress.advance(self.step - before)
                progress.note(self.note(self.collector.means()))
                if self.step // self.spacing > before // self.spacing:
                    artefacts.save_weights(self.agent, self.run.path / f"checkpoint_{self.step:09d}.safetensors")
                if time.time() - saved > 60 * self.config.save_minutes:
                    self.save()
                    saved = time.time()
                if self.step < self.total and stop.due():
                    break
        self.save()
        if stop.reason:
            stop.say(self.config, f"{self.step:,} of {self.total:,} steps")
        return bool(stop.reason)
