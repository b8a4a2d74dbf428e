"""Interventions: the stage ``python -m validation.interventions`` and its machinery."""
