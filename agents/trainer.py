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
from core.files import CannotWrite
from core.progress import bar
from core.ranks import ALONE, Processes
from core.training import STATE, Log, Stop, load_state, rng_states, save_state, set_rng_states

PARTS = ("agent", "optimiser", "torch_rng", "numpy_rng", "step", "wall_s", "collector")  # of a training state


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
    learned: Callable[[Rollout], None] | None = None  # is shown every rollout once it was learned from
    held_out: Callable[[], dict[str, float]] | None = None  # what is measured beside training, for the curve
    every: int = 0  # steps between two of these
    processes: Processes = ALONE  # that train together; the first one writes
    step: int = field(init=False, default=0)
    _before: float = field(init=False, default=0.0)
    _curve: list[dict[str, Any]] | None = field(init=False, default=None)
    _saved: int | None = field(init=False, default=None)  # step of the state on disk

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.Adam(self.agent.parameters(), lr=self.ppo.learning_rate, eps=1e-5)
        self._file = self.run.path / STATE
        if self.config.resume:
            state = load_state(self._file, *PARTS)
            self.agent.load_state_dict(state["agent"])
            self.optimiser.load_state_dict(state["optimiser"])
            set_rng_states(state["torch_rng"], self.device)
            self.rng.bit_generator.state = state["numpy_rng"]
            self.step, self._before = state["step"], state["wall_s"]
            self._saved = self.step
            self.collector.restore(state["collector"], self.step)
            self._curve = state.get("curve")
        self.log: Log | None = None
        if self.processes.first:
            keep = self.step if self.config.resume else None
            self.log = Log(self.run.path, self.config, self.config.track, keep=keep, rows=self._curve)
        self._began = time.monotonic()

    @property
    def ppo(self) -> PPOConfig:
        ppo: PPOConfig = self.config.ppo
        return ppo

    def wall(self) -> float:
        """Seconds of training, those before a stop included."""
        return self._before + time.monotonic() - self._began

    def save(self) -> None:
        """What --resume goes on from, by all processes together."""
        collector = self.collector.state()
        if self.log is None:
            return
        self.log.save()
        if self.beside is not None:
            self.beside(self.log.rows)
        save_state(
            self._file, agent=self.agent.state_dict(), optimiser=self.optimiser.state_dict(),
            collector=collector, torch_rng=rng_states(self.device),
            numpy_rng=self.rng.bit_generator.state, step=self.step, wall_s=self.wall(), curve=self.log.rows,
            **self.more,
        )  # fmt: skip
        self._saved = self.step

    def stopped(self, why: str) -> UserError:
        """What is said of a training that cannot go on."""
        left = "no state was saved yet" if self._saved is None else f"--resume goes on from step {self._saved}"
        return UserError(f"training stopped at step {self.step}: {why}; {left}")

    def _update(self) -> None:
        ppo, left = self.ppo, 1 - self.step / self.total
        self.optimiser.param_groups[0]["lr"] = ppo.learning_rate * (left if ppo.anneal else 1.0)
        entropy_coef = ppo.entropy_coef * (left if ppo.anneal_entropy else 1.0)
        if not torch.isfinite(torch.nn.utils.get_total_norm(p.detach() for p in self.agent.parameters())):
            raise self.stopped("the weights are no longer finite numbers")
        try:
            rollout = self.collector.collect()
        except UserError as error:  # of the world
            raise self.stopped(str(error)) from None
        try:
            logs = update(
                self.agent, self.optimiser, rollout, ppo, self.rng, entropy_coef, self.loss, self.processes
            )  # fmt: skip
        except FloatingPointError as error:
            raise self.stopped(str(error)) from None
        if self.learned is not None:
            self.learned(rollout)
        before, self.step = self.step, self.step + self.collector.collected
        measured: dict[str, float] = {}
        if self.held_out and (self.step // self.every > before // self.every or self.step >= self.total):
            try:
                measured = self.held_out()
            except UserError as error:
                raise self.stopped(f"--evaluate_every: {error}") from None
        if self.log is not None:
            self.log.add(self.step, **self.collector.means(), wall_s=self.wall(), **logs, **measured)

    def train(self, stop: Stop) -> bool:
        """To the last step, or to where ``stop`` is due; the state is saved.  Whether it was stopped.

        UserError, which says what is left, where a file cannot be written.
        """
        try:
            self._train(stop)
        except CannotWrite as error:
            raise self.stopped(str(error)) from None
        if stop.reason:
            stop.say(self.config, f"{self.step:,} of {self.total:,} steps")
        return bool(stop.reason)

    def _train(self, stop: Stop) -> None:
        saved = time.monotonic()
        with bar("training", self.total, "steps", show=self.processes.first) as progress, stop:
            progress.advance(self.step)
            while self.step < self.total:
                before = self.step
                self._update()
                progress.advance(self.step - before)
                progress.note(self.note(self.collector.means()))
                if self.processes.first and self.step // self.spacing > before // self.spacing:
                    artefacts.save_weights(self.agent, self.run.path / f"checkpoint_{self.step:09d}.safetensors")
                late = time.monotonic() - saved > 60 * self.config.save_minutes
                if self.processes.largest(late, self.device):
                    self.save()
                    saved = time.monotonic()
                if self.step < self.total and stop.due():
                    break
        self.save()
