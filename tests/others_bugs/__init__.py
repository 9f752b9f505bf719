"""Situations of other projects' bug reports, through the highest door that can observe them."""
