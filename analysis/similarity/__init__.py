"""Similarity of agents: the stage ``python -m analysis.similarity`` and its machinery."""
