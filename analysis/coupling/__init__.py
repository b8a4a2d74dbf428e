"""Coupling of directions: the stage ``python -m analysis.coupling`` and its machinery."""
