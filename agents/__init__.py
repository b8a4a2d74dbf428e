"""Policies, their training, recording and evaluation."""
