"""Methods on worlds whose truth is known: the stage ``python -m validation.planted`` and its machinery."""
