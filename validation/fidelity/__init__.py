"""Fidelity of a simulator: the stage ``python -m validation.fidelity`` and its machinery."""
