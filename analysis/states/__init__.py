"""Pooled states and what is fitted to them: the machinery of analysis.hidden_states, env_states and latents."""
