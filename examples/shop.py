"""The support of a small shop: one tool that reads, one that writes, and one that asks a person first.

`turnkeeper dev examples/shop.py`, then: "Where is order A-1003?", "Refund A-1003, 29 euros, it arrived broken".
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel

from turnkeeper import Agent, ToolContext, ToolError, tool

DATABASE = Path(os.environ.get("SHOP_DATABASE", "shop.db"))

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, customer TEXT, status TEXT, total_eur REAL);
CREATE TABLE IF NOT EXISTS notes (key TEXT PRIMARY KEY, order_id TEXT, text TEXT);
CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, order_id TEXT, amount_eur REAL, reason TEXT);
INSERT OR IGNORE INTO orders VALUES ('A-1003', 'anna', 'delivered', 29), ('A-1004', 'ben', 'packed', 80);
"""


class Order(BaseModel):
    """An order, as the model reads it."""

    id: str
    status: str
    total_eur: float


def database() -> sqlite3.Connection:
    """Return a connection, with the tables and two orders in place."""
    connection = sqlite3.connect(DATABASE)
    connection.executescript(SCHEMA)
    return connection


def order_of(connection: sqlite3.Connection, order_id: str, context: ToolContext) -> Order:
    """Return an order of the customer whom the session was started for: the model can't say who that is."""
    row = connection.execute("SELECT id, status, total_eur, customer FROM orders WHERE id = ?", [order_id]).fetchone()
    if row is None or context.user not in (None, row[3]):
        raise ToolError(f"This customer has no order {order_id}. Ask for the number on the confirmation.")
    return Order(id=row[0], status=row[1], total_eur=row[2])


@tool(effect="read")
def order_status(context: ToolContext, order_id: str) -> Order:
    """Status and total of an order, whose number is on the confirmation: A-1003."""
    with closing(database()) as connection:
        return order_of(connection, order_id, context)


@tool(effect="idempotent", ask=False)
def add_note(context: ToolContext, order_id: str, text: str) -> str:
    """Add a note for the colleagues to an order."""
    with closing(database()) as connection, connection:
        order_of(connection, order_id, context)
        # The same call may run twice, after a crash; it has the same key then.
        connection.execute("INSERT OR IGNORE INTO notes VALUES (?, ?, ?)", [context.call_id, order_id, text])
    return f"Noted at {order_id}."


@tool(effect="at_most_once")
def refund(context: ToolContext, order_id: str, amount_eur: float, reason: str) -> str:
    """Refund an order, whole or in part. It can't be undone, so a person approves it first."""
    with closing(database()) as connection, connection:
        order = order_of(connection, order_id, context)
        if not 0 < amount_eur <= order.total_eur:
            raise ToolError(f"Between 0 and {order.total_eur} euros can be refunded.")
        row = [context.call_id, order_id, amount_eur, reason]
        connection.execute("INSERT INTO refunds VALUES (?, ?, ?, ?)", row)
    return f"Refunded {amount_eur:g} euros of {order_id}."


agent = Agent(
    "support",
    instructions=(
        "You are the support of a small web shop and talk to {user}; today is {today}. "
        "Look orders up before you say anything of them. Be friendly and brief."
    ),
    tools=[order_status, add_note, refund],
)
