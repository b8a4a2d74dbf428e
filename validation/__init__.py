"""Checks of claims: fidelity, interventions in simulator and real world, the demo and its report."""

import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
