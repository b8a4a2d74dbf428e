"""The learned, differentiable world around a frozen agent."""

import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
