"""Paired runs in the simulator, or with the last frame repeated (core.roll.Recorded of that frame)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.shared.gradients import row_gradients
from core import ranks
from core.contracts import Intervention, Shown, World
from core.figures import as_bytes
from core.progress import bar
from core.roll import Moment, index_of, joined_starts, one_hot, paid_in, roll, starts_at
from core.trees import Tree, joined, rows_of
from validation.hypotheses.changes import AddSteps
from validation.paired.course import Course, course_along, is_late, quantities, still_on
from validation.paired.tree import Paired, Places, together

# Rows simulated at once.  On a CPU as many take as long in blocks of 32, which several processes can share; a GPU waits
# for each block.
ON_CPU, ON_GPU = 32, 128


def a_block(like: Tensor) -> int:
    """How many rows of what lies where ``like`` does are simulated at once."""
    return ON_GPU if like.is_cuda else ON_CPU


@torch.no_grad()
def begun(world: World, z_NZ: Tensor) -> tuple[Tree, Shown]:
    """``World.start`` of many latents."""
    return joined_starts([world.start(z) for z in z_NZ.split(a_block(z_NZ))])


@dataclass
class SimulatedWorld(Paired):
    """The agent in a simulated world, run on from the starts' frames and the states it had there.

    The world takes its most likely course; only the action noise is drawn, and it is the real world's.
    """

    world: World
    start_N: tuple[Tree, Shown]  # the N starts, as ``World.start`` gives them

    def _start(self, rows: Tensor) -> tuple[Tree, Shown]:
        return starts_at(self.start_N, rows)

    def moments(
        self, rows: Tensor, intervene: Sequence[Intervention] = (), through: str = "", actions: Tensor | None = None
    ) -> list[Moment]:
        """Every step of every row simulated, so that gradients pass.  Rows are indices int64 [R] of starts."""
        return list(
            roll(
                self.agent, self.world, self._start(rows), state=rows_of(self.state_N, rows), steps=self.steps - 1,
                actions=actions, noise=self._noise(rows), intervene=intervene, env_grads=through != "memory",
                forget=through == "world",
            )
        )  # fmt: skip

    def course_from(self, rows: Tensor, intervene: Sequence[Intervention] = (), through: str = "") -> Course:
        """Every step of every row simulated, so that gradients pass.  Rows are indices int64 [R] of starts.

        through: 'memory' cuts the gradient from action to world (and only it: where actions change, use ``measure``);
        'world' lets the agent forget what was done to it.
        """
        return course_along(self.moments(rows, intervene, through))

    @torch.no_grad()
    def begin(self) -> Places:
        return self._places(*self.start_N)

    def go(self, t: int, states: Sequence[Any], actions: Tensor) -> Places:
        rows = a_block(self.noise_NTA)

        def some(first: int) -> Places:
            state = joined(states[first : first + rows])
            done = one_hot(actions[first : first + rows], self.agent.spec.parts, self.start_N[1].reward_B)
            return self._places(*self.world.step(state, done))

        return together([self.as_here(found) for found in ranks.each(range(0, len(states), rows), some)])

    def _places(self, state: Tree, shown: Shown) -> Places:
        n = a_block(shown.reward_B)
        seen = joined(
            [self.agent.encode({k: x[i : i + n] for k, x in shown.obs.items()})
             for i in range(0, len(shown.reward_B), n)]
        )  # fmt: skip
        rows = [rows_of(state, slice(i, i + 1)) for i in range(len(shown.reward_B))]
        never, told = torch.zeros_like(shown.reward_B), shown.reward_B[:, None][:, :0]
        return Places(rows, seen, shown.reward_B, paid_in(shown), shown.ending_B, never, told)

    def jacobian(
        self, block: int = 0, steps: int = 1, through: str = "", known: Collection[str] = (), most: int | None = None
    ) -> dict[str, Tensor]:
        """{quantity: [S, N, H]}, its derivative with respect to h at steps 0 to S-1, through agent and world
        (straight-through where an action is chosen).  NaN for events that have none: thresholds, and whether something
        happens at all.  known: quantities to leave out; most: starts, the first ones; block: starts at
        once (0: half of what is simulated at once)."""
        found: dict[str, list[Tensor]] = {}
        n = len(self.noise_NTA)
        count = n if most is None else min(most, n)
        blocks = torch.arange(count, device=self.noise_NTA.device).split(block or a_block(self.noise_NTA) // 2)
        with bar("Jacobians", count, "starts") as progress:
            for of_block in ranks.each(blocks, lambda rows: self._jacobian(rows, steps, through, known)):
                for q, grad in of_block.items():
                    found.setdefault(q, []).append(grad)
                progress.advance(next(iter(of_block.values())).shape[1])
        return {q: torch.cat(v, 1) for q, v in found.items()}

    def _jacobian(self, rows: Tensor, steps: int, through: str, known: Collection[str]) -> dict[str, Tensor]:
        """{quantity: [S, R, H]} of some starts."""
        state = rows_of(self.state_N, rows)
        like = self._start(rows)[1]
        h = self.agent.read("h", self.agent.encode(like.obs), state)
        change = h.new_zeros(steps, *h.shape).requires_grad_()
        # What holds at once follows from the heads alone: asked of the whole course, it would send zeros back
        # through every later step of the world.
        seen, moved = self.agent.replaced("h", h + change[0], self.agent.encode(like.obs), state)
        logits, value = self.agent.heads(seen, moved)
        none = value.new_zeros(len(rows), 0)
        at_once = Course(logits[:, None], value[:, None], none, torch.ones_like(value[:, None]))
        now = quantities(at_once, self.measures)
        got = quantities(self.course_from(rows, (AddSteps(change),), through), self.measures)
        out: dict[str, Tensor] = {}
        for q, value_R in got.items():
            if q in known:
                continue
            kind, _, when = q.partition("@")
            if kind == "return" and {f"value@{when}", f"reward@{when}"} <= out.keys():
                out[q] = out[f"value@{when}"] + out[f"reward@{when}"]
            elif kind.startswith(("event:", "time:", "first:")) or (
                kind.startswith("rate:") and not value_R.requires_grad
            ):
                out[q] = torch.full_like(change, torch.nan)  # it has no derivative
            else:
                out[q] = row_gradients([value_R if is_late(q) else now[q]], [change], keep=True)[0][0]
        return out

    @torch.no_grad()
    def film(self, change: Intervention | None, through: str, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """What the agent sees from some starts, without and with a change: uint8 [n, T, ...] each, black where the
        episode has ended (is likelier than not to have)."""
        both = []
        for g in (None, change):
            course = self.run(() if g is None else (g,), through)
            assert course.action_RTA is not None
            actions = index_of(course.action_RTA[rows], self.agent.spec.parts)
            frames = [m.shown.obs[self.agent.spec.main_field] for m in self.moments(rows, actions=actions)]
            seen = [as_bytes(x.cpu().numpy()) for x in frames]
            both.append(np.stack(seen, 1) * still_on(course, rows))
        return both[0], both[1]
