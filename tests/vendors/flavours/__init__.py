"""Vendors as their documents and bug reports describe them: each checks a request fully, in its own words.

Nothing here reads our encoders. `rules.py` says what a violation is, and has the rules of JSON Schema that vendors
share; `chat_rules.py`, `anthropic_rules.py` and `responses_rules.py` have the rules of the three APIs and their
dialects; `flavours.py` has the vendors, and `fleet.py` a server for all of them, with a model that does as it is told.
"""
