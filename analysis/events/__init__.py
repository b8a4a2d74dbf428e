"""Events in recordings: the stage ``python -m analysis.events`` and its machinery."""
