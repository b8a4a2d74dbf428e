"""The learned, differentiable world around a frozen agent."""
