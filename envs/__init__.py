"""Worlds, one adapter each, all to the VecEnv contract."""

import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
