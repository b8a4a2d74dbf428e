"""Worlds, one adapter each, all to the VecEnv contract."""
