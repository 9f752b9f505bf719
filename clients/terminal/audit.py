"""`turnkeeper audit`: who changed what."""

from typing import Any

from turnkeeper.clients.python.gateway import GatewayClient
from turnkeeper.clients.terminal import texts
from turnkeeper.clients.terminal.gateway_command import GatewayCommand, say, with_gateway
from turnkeeper.models.http_responses import AuditEntry

PAGE = 1_000
"""The most entries that the gateway returns at once."""


class AuditCommand(GatewayCommand):
    """Prints changes, newest first, a line each; with `--json`, an object a line."""

    @with_gateway
    async def show(self, gateway: GatewayClient, /, *, limit: int, **filters: Any) -> int:
        """Print at most `limit` changes; `filters` are those of `GatewayClient.audit`."""
        rest, cursor = limit, None
        while rest > 0:
            page = await gateway.audit(**filters, limit=min(rest, PAGE), cursor=cursor)
            for entry in page.entries:
                self.print_result(entry, _line(entry))
            rest, cursor = rest - len(page.entries), page.next_cursor
            if cursor is None:
                break
        if rest == limit and not self.as_json:
            say(texts.NO_AUDIT)
        return 0


def _line(entry: AuditEntry) -> str:
    who = f"{entry.user} ({entry.caller})" if entry.user else entry.caller
    ids = (entry.workflow_id, entry.message_id, entry.call_id, entry.key_id)
    what = " ".join(filter(None, (entry.action, *ids, *entry.fields)))
    status = f" {entry.status}" if entry.outcome in ("refused", "failed") else ""
    return f"{entry.at:%Y-%m-%d %H:%M:%S}  {who}  {what}  {texts.AUDIT_OUTCOME[entry.outcome]}{status}"
