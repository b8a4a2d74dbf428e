"""Psychometric curves: an agent's choice in scenes that differ in one variable of the world alone (Procgen)."""
