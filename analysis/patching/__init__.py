"""Patching: the stage ``python -m analysis.patching`` and its machinery."""
