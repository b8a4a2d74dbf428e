"""Planted worlds that lack something, for the tests of what is done without it."""

from __future__ import annotations

from dataclasses import replace

from core.contracts import EnvSpec, Step
from envs.planted import PlantedOptions, PlantedWorld


class NoSnapshots(PlantedWorld):
    """The planted world, which forgot how to take snapshots."""

    def __init__(self, options: PlantedOptions, slots: int) -> None:
        super().__init__(options, slots)
        self.spec: EnvSpec = replace(self.spec, can_snapshot=False)

    def snapshot(self) -> tuple[bytes, ...]:
        raise NotImplementedError

    def restore(self, states: object) -> Step:
        raise NotImplementedError
