"""The four policies of the NeurIPS 2023 Neural MMO zoo, re-implemented from their description."""
