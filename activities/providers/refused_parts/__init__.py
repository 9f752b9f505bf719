"""The one place that decides about a part of a request that a vendor refuses, for all vendors and parts (AGT-9).

send, and remember   `sending.py`: send a request; if it is refused, send it without the refused part; by endpoint and
                     model for a day (the session carries its own: `models/session`)
find the part        `blame.py`: what the vendor's words, place and codes blame, and what may be left out unnamed
leave it out         `parts.py`: of our own request, and of the encoded body
"""
