"""Probes: the stage ``python -m analysis.probes`` and its machinery."""
