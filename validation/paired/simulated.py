"""Paired runs in the simulator."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.contracts import Intervention, SimState, Simulator, StepNoise, StepOut
from core.progress import bar
from validation.paired.course import Course, course_of, is_late, quantities, still_on
from validation.paired.tree import AddSteps, Become, Places, World, joined


@dataclass
class SimulatedWorld(World):
    """The agent in the simulator, run on from the starts' frames and their recorded h.

    The world takes its most likely course; only the action noise is drawn, and it is the real world's.
    """

    simulator: Simulator
    z_NZ: Tensor
    batch: int = 128  # rows simulated at once

    def _noise(self, rows: Tensor, t: int) -> StepNoise:
        still = torch.zeros_like(self.simulator.draw_noise(1, torch.Generator(self.z_NZ.device)).s_BS)
        return StepNoise(still.expand(len(rows), *still.shape[1:]), self.noise_NTA[rows, t])

    def course(self, rows: Tensor, intervene: Sequence[Intervention] = (), through: str = "") -> Course:
        """Every step of every row simulated, so that gradients pass.  Rows are indices int64 [R] of starts.

        through: 'memory' cuts the gradient from action to world (and only it: where actions change, use ``measure``);
        'world' lets the agent forget what was done to it at step 0.
        """
        begin = Become(self.h_NH[rows])
        state = self.simulator.start(self.z_NZ[rows])
        outs, actions = [], []
        for t in range(self.noise_NTA.shape[1]):
            state, out = self.simulator.step(
                state, noise=self._noise(rows, t), intervene=(begin, *intervene), env_grads=through != "memory"
            )
            if through == "world" and t == 0:
                state = state._replace(h_BH=self.h_NH[rows])
            outs.append(out)
            actions.append(state.action_BA)

        def stack(name: str, first: int = 0) -> Tensor:
            return torch.stack([getattr(out, name) for out in outs[first:]], 1)

        logits, value, h = stack("logits_BA"), stack("value_B"), stack("h_BH")
        return course_of(logits, value, stack("reward_B", 1), stack("terminal_B", 1), h, torch.stack(actions, 1))

    @torch.no_grad()
    def begin(self) -> Places:
        parts = []
        for rows in torch.arange(len(self.z_NZ), device=self.z_NZ.device).split(self.batch):
            parts.append(
                self._places(*self.simulator.step(self.simulator.start(self.z_NZ[rows]), noise=self._noise(rows, 0)))
            )
        return joined(parts)

    def go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        parts = []
        for first in range(0, len(states), self.batch):
            some = states[first : first + self.batch]
            done = torch.tensor(actions[first : first + self.batch], device=self.z_NZ.device)
            d, s = (torch.stack(x) for x in zip(*some, strict=True))
            action = torch.nn.functional.one_hot(done, self.noise_NTA.shape[2]).to(d.dtype)
            alive = torch.ones(len(some), dtype=torch.bool, device=d.device)
            state = SimState(d, s, self.h_NH[:1].expand(len(some), -1), action, alive, t)
            parts.append(self._places(*self.simulator.step(state, noise=self._noise(torch.zeros_like(done), t))))
        return joined(parts)

    def _places(self, state: SimState, out: StepOut) -> Places:
        rows = list(zip(state.d_BD.unbind(), state.s_BS.unbind(), strict=True))
        return Places(rows, self.agent.encode(out.obs), out.reward_B, out.terminal_B)

    def jacobian(
        self, block: int = 64, steps: int = 1, through: str = "", known: Collection[str] = (), most: int | None = None
    ) -> dict[str, Tensor]:
        """{quantity: [S, N, H]}, its derivative with respect to h at steps 0 to S-1, through agent and world
        (straight-through where an action is chosen).  NaN for events that have none: thresholds, and whether something
        happens at all.  known: quantities to leave out; most: starts, the first ones."""
        found: dict[str, list[Tensor]] = {}
        count = len(self.z_NZ) if most is None else min(most, len(self.z_NZ))
        blocks = torch.arange(count, device=self.z_NZ.device).split(block)
        with bar("Jacobians", count, "starts") as progress:
            for rows in blocks:
                h = self.h_NH[rows]
                change = h.new_zeros(steps, *h.shape).requires_grad_()
                # What holds at once follows from the heads alone: asked of the whole course, it would send zeros back
                # through every later step of the world.
                logits, value = self.agent.heads(h + change[0])
                none = value.new_zeros(len(rows), 0)
                at_once = Course(logits[:, None], value[:, None], none, torch.ones_like(value[:, None]))
                now = quantities(at_once, self.measures)
                got = quantities(self.course(rows, (AddSteps(change),), through), self.measures)
                for q, value_R in got.items():
                    if q in known:
                        continue
                    value_R = value_R if is_late(q) else now[q]
                    kind, _, when = q.partition("@")
                    happening, grad = kind.startswith(("rate:", "event:")), None
                    if kind == "return" and {f"value@{when}", f"reward@{when}"} <= found.keys():
                        grad = found[f"value@{when}"][-1] + found[f"reward@{when}"][-1]
                    elif value_R.requires_grad and not kind.startswith("event:"):
                        (grad,) = torch.autograd.grad(value_R.sum(), change, retain_graph=True, allow_unused=True)
                    if grad is None:  # other quantities than events just do not depend on h
                        grad = torch.full_like(change, torch.nan if happening else 0.0)
                    found.setdefault(q, []).append(grad.detach())
                progress.advance(len(rows))
        return {q: torch.cat(v, 1) for q, v in found.items()}

    @torch.no_grad()
    def film(self, change: Intervention | None, through: str, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """What the agent sees from some starts, without and with a change: uint8 [n, T, ...] each, black where the
        episode has ended (is likelier than not to have)."""
        both = []
        for g in (None, change):
            course = self.run(() if g is None else (g,), through)
            assert course.action_RTA is not None
            actions, seen = course.action_RTA[rows].argmax(-1), []
            state = self.simulator.start(self.z_NZ[rows])
            for t in range(actions.shape[1]):
                state, out = self.simulator.step(state, action=actions[:, t], noise=self._noise(rows, t))
                seen.append((next(iter(out.obs.values())).clamp(0, 1) * 255).byte().cpu().numpy())
            both.append(np.stack(seen, 1) * still_on(course, rows))
        return both[0], both[1]
