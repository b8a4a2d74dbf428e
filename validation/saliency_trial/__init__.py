"""Saliency tried in the real world: the stage ``python -m validation.saliency_trial`` and its machinery."""
