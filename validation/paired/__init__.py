"""Paired runs from the same starts, with and without a change: in the simulator, the real world, a held frame."""
