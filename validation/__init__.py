"""Checks of claims: fidelity, interventions in simulator and real world, the demo and its report."""
