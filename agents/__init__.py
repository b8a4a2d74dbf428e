"""Policies, their training, recording and evaluation."""

import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
