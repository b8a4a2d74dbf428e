"""The grammar of hypotheses and events, and the changes of the hidden state that they mean."""
