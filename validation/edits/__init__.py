"""Edits of the real world as interventions: what follows when an object is removed, moved or added (Procgen)."""
