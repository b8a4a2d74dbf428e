"""A policy's own clusters: the stage ``python -m analysis.semantics`` and its machinery."""
