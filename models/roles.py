"""What callers may do, in four steps. A module of its own, since gateway, key store and clients share it."""

from typing import Literal, get_args

Role = Literal["reader", "writer", "approver", "admin"]
"""Each role may do what those before it may."""

ROLES: tuple[Role, ...] = get_args(Role)


def parse_role(name: object) -> Role | None:
    """Return the role with this name; `None` if there is none.

    >>> parse_role("writer"), parse_role("root")
    ('writer', None)
    """
    return next((role for role in ROLES if role == name), None)
