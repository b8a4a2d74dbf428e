"""Saliency: the stage ``python -m analysis.saliency`` and its machinery."""
