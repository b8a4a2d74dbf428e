"""Clusters of activations: the stage ``python -m analysis.activations`` and its machinery."""
