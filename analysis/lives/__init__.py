"""Lives of agents in Neural MMO: the machinery of extract_activations, activation_json, life, life_phase, replay and
proc_eval_result."""
