"""Directions that carry a variable: sought by exchanging them between a world and its edited twin."""
