"""Measurements of speed and memory; docs/performance.md has the numbers."""

import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
