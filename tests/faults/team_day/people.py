"""The people of the tenants: names, roles and keys."""

import secrets
from dataclasses import dataclass, field

from turnkeeper.models.http_responses import Role

TENANTS = ("", "acme", "globex")

ROLES_OF_TEN: tuple[Role, ...] = (
    *("admin", "approver", "writer", "reader", "writer"),
    *("writer", "approver", "writer", "reader", "writer"),
)


@dataclass
class Person:
    """`key` changes when it is rotated. `is_leaving`: the only key is being revoked. `is_removed`: it has been."""

    name: str
    tenant: str
    role: Role
    key: str = ""
    is_leaving: bool = False
    is_removed: bool = False

    @property
    def key_id(self) -> str:
        return self.key.split("_")[1]

    @property
    def secret(self) -> str:
        return self.key.split("_", 2)[2]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


@dataclass
class Tenant:
    """`word` is in every prompt of the tenant, and may be in nothing that others receive."""

    name: str
    people: list[Person]
    word: str = field(default_factory=lambda: f"word{secrets.token_hex(8)}")
    sessions: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, *, size: int) -> "Tenant":
        roles = [ROLES_OF_TEN[number % len(ROLES_OF_TEN)] for number in range(size)]
        prefix = name or "home"
        return cls(name, [Person(f"{prefix}-{role}-{number}", name, role) for number, role in enumerate(roles)])
