"""The tasks that agents of Neural MMO are given and judged by: six kinds, progress in [0, 1] each.

Predicates are nmmo's own; which of them, how much of each, and the embedding that a policy sees are this project's
(the competition's tasks came with embeddings from a language model, which are not ours to ship).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CATEGORIES = ("survival", "combat", "exploration", "skill", "item", "market")
CORE = ("survival", "combat", "exploration")  # what there is without items, professions and a market


@dataclass(frozen=True)
class GameTask:
    """One task.  ``predicate`` is a function of nmmo.task.base_predicates, ``settings`` its JSON arguments (a skill by
    its name); ``amount`` is what the embedding tells of how much is asked."""

    name: str
    category: str
    predicate: str
    settings: tuple[tuple[str, Any], ...]
    amount: float


def _event(name: str, category: str, event: str, count: int) -> GameTask:
    return GameTask(name, category, "CountEvent", (("event", event), ("N", count)), count)


def tasks_of(horizon: int, systems: str) -> tuple[GameTask, ...]:
    """The curriculum of a world whose time is up after ``horizon`` ticks."""
    all_tasks = (
        GameTask("survive", "survival", "TickGE", (("num_tick", horizon),), horizon),
        _event("eat", "survival", "EAT_FOOD", 15),
        _event("drink", "survival", "DRINK_WATER", 15),
        _event("hit", "combat", "SCORE_HIT", 20),
        _event("kill", "combat", "PLAYER_KILL", 3),
        GameTask("travel", "exploration", "DistanceTraveled", (("dist", 24),), 24),
        GameTask("to_centre", "exploration", "ProgressTowardCenter", (), 1),
        GameTask("fish", "skill", "AttainSkill", (("skill", "Fishing"), ("level", 3), ("num_agent", 1)), 3),
        GameTask("gather", "skill", "AttainSkill", (("skill", "Herbalism"), ("level", 3), ("num_agent", 1)), 3),
        _event("harvest", "item", "HARVEST_ITEM", 5),
        _event("equip", "item", "EQUIP_ITEM", 2),
        _event("consume", "item", "CONSUME_ITEM", 3),
        _event("list", "market", "LIST_ITEM", 3),
        _event("buy", "market", "BUY_ITEM", 2),
        GameTask("earn", "market", "EarnGold", (("amount", 10),), 10),
    )
    return all_tasks if systems == "all" else tuple(t for t in all_tasks if t.category in CORE)


def embeddings(tasks: Sequence[GameTask]) -> np.ndarray:
    """What a policy sees of each task, float16 [tasks, tasks + 7]: which it is, its category, log10 of its amount."""
    out = np.zeros((len(tasks), len(tasks) + len(CATEGORIES) + 1), np.float16)
    for i, task in enumerate(tasks):
        out[i, i] = 1
        out[i, len(tasks) + CATEGORIES.index(task.category)] = 1
        out[i, -1] = np.log10(task.amount)
    return out


def specs(tasks: Sequence[GameTask]) -> list[Any]:
    """nmmo's TaskSpec of each."""
    from nmmo.systems import skill
    from nmmo.task import base_predicates
    from nmmo.task.task_spec import TaskSpec

    out = []
    for task, embedding in zip(tasks, embeddings(tasks), strict=True):
        settings = {k: getattr(skill, v) if k == "skill" else v for k, v in task.settings}
        predicate = getattr(base_predicates, task.predicate)
        out.append(TaskSpec(eval_fn=predicate, eval_fn_kwargs=settings, embedding=embedding))
    return out
