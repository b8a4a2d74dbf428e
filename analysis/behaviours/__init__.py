"""Behaviours: the stage ``python -m analysis.behaviours`` and its machinery."""
