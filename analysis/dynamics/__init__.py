"""The memory as a dynamical system: the stage ``python -m analysis.dynamics`` and its machinery."""
