"""The matrix of model faults: each row is a session that meets one, and must answer within its next two turns.

`rows.py` has all rows; they come from `parts.py` (one refused part), `orders.py` (what happens in a turn),
`shapes.py` (tools as servers give them), `words.py` (errors in vendors' words), `dialects.py` (answers as servers
stream them) and `models.py` (names of models). `playing.py` plays them. Every request meets the rules of its vendor in
`tests/vendors/flavours`.
"""
