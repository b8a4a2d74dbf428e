"""An agent's memory as a map of flat states.

S the agent's whole state, flat (h alone where there is no more); E what drives it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from analysis.shared.gradients import row_jacobians
from core.contracts import Agent
from core.roll import blank
from core.trees import Tree, each, flatten, unflatten

AT_ONCE = 2**19  # numbers of Jacobians that a CPU computes at once, so that they stay in its cache


@dataclass(frozen=True)
class Recurrence:
    """s -> F(s; e), within an episode.

    e is the agent's point ``embedding`` where it has one, else all that it has seen, flat.
    """

    agent: Agent
    seen: Tree  # one row of what it sees, all but e of which stays as it is
    state: Tree  # one row, which says the shapes

    @classmethod
    def of(cls, agent: Agent, dtype: torch.dtype = torch.float64) -> Recurrence:
        """A copy of the agent's memory in float64, whose rounding decides what a fixed point is."""
        with torch.no_grad():
            seen, state = blank(agent, 1), agent.initial(1)
        precise: Any = copy.deepcopy(agent)

        def cast(x: Tensor) -> Tensor:
            return x.detach().to(dtype) if x.is_floating_point() else x

        return cls(precise.to(dtype), each(cast, seen), each(cast, state))

    def _rows(self, batch: int) -> tuple[Tree, Tree]:
        both: tuple[Tree, Tree] = each(lambda x: x.expand(batch, *x.shape[1:]), (self.seen, self.state))
        return both

    def inputs(self, agent: Agent, obs: Mapping[str, Tensor]) -> Tensor:
        """What drives the memory at some observations [N, E], by the agent as it is."""
        seen = agent.encode(obs)
        n = len(next(iter(obs.values())))
        return agent.read("embedding", seen, agent.initial(n)) if self._embeds else flatten(seen)

    @property
    def remembers(self) -> bool:
        """Whether the next state depends on the one before (False: a feed-forward agent)."""
        flat = flatten(self.state)
        generator = torch.Generator().manual_seed(0)
        two = flat + torch.randn(2, flat.shape[1], generator=generator, dtype=flat.dtype).to(flat.device)
        seen = self.agent.read("embedding", self.seen, self.state) if self._embeds else flatten(self.seen)
        with torch.no_grad():
            one, other = self(seen.expand(2, -1), two)
        return not torch.equal(one, other)

    @property
    def _embeds(self) -> bool:
        return "embedding" in self.agent.points

    def __call__(self, e_BE: Tensor, s_BS: Tensor) -> Tensor:
        """The next states."""
        seen, state = self._rows(len(s_BS))
        state = unflatten(s_BS, state)
        seen = self.agent.replaced("embedding", e_BE, seen, state)[0] if self._embeds else unflatten(e_BE, seen)
        first = torch.zeros(len(s_BS), dtype=torch.bool, device=s_BS.device)
        return flatten(self.agent.advance(seen, state, first))

    def with_jacobian(self, e_BE: Tensor, s_BS: Tensor) -> tuple[Tensor, Tensor]:
        """F(s; e) [B, S] and dF_i / ds_j [B, S, S]."""
        rows = max(1, AT_ONCE // s_BS.shape[1] ** 2) if s_BS.device.type == "cpu" else len(s_BS)
        parts = [self._part(e, s) for e, s in zip(e_BE.split(rows), s_BS.split(rows), strict=True)]
        after, jacobian = parts[0] if len(parts) == 1 else (torch.cat(x) for x in zip(*parts, strict=True))
        return after, jacobian

    def _part(self, e_BE: Tensor, s_BS: Tensor) -> tuple[Tensor, Tensor]:
        s = s_BS.detach().requires_grad_()
        with torch.enable_grad():
            after = self(e_BE, s)
            return after.detach(), row_jacobians(after, s)

    @property
    def whole_S(self) -> Tensor:
        """bool [S]: the numbers of a state that are whole ones (counters), which the map cuts off to such."""
        return (
            flatten(each(lambda x: torch.full_like(x, not x.is_floating_point(), dtype=torch.float32), self.state))[0]
            > 0
        )

    def hidden(self, s_BS: Tensor) -> Tensor:
        """The hidden states h [B, H] of flat states."""
        seen, state = self._rows(len(s_BS))
        return self.agent.read("h", seen, unflatten(s_BS, state))

    def heads(self, s_BS: Tensor) -> tuple[Tensor, Tensor]:
        """(logits, value) there, of an agent that sees nothing and may do everything."""
        seen, state = self._rows(len(s_BS))
        return self.agent.heads(seen, unflatten(s_BS, state))
