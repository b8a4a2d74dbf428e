"""Target functions: the stage ``python -m analysis.target_functions`` and its machinery."""
