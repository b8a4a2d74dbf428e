"""One page about a chain of runs: the stage ``python -m validation.report`` and its machinery."""
