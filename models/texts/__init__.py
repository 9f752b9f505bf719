"""Texts as people read them: on one line, with formulas, and with nothing hidden in them."""
