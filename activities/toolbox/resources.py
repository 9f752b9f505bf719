"""The resources of a foreign server, as a tool of the server that lists and reads them (AGT-6)."""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from mcp import Client, MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)
from pydantic import ValidationError

MAX_PAGES = 20
MAX_LISTED = 500

LISTING_SECONDS = 5.0
"""How long the list of tools waits for that of the resources."""

MAX_DESCRIPTION_CHARS = 200

_SCHEMA = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "Omit it to list the resources and templates of uris"}},
    "additionalProperties": False,
}


class ResourceReader(Tool):
    """A tool that reads a resource, or lists them. Its description is the same whatever they are: requests are cached.

    Several servers have one, so its name always has the server's.
    """

    always_qualified: ClassVar[bool] = True

    @classmethod
    def of(cls, server: str, others: set[str]) -> "ResourceReader":
        """Return the tool for `server`, whose own tools are called `others`."""
        return cls(
            name=next(name for name in ("read_resource", "read_mcp_resource", "") if name not in others),
            description=f"Read a resource of the tool server {server}; without uri, list what it has.",
            input_schema=_SCHEMA,
            annotations=ToolAnnotations(read_only_hint=True),
        )

    async def run(self, client: Client, args: Mapping[str, Any]) -> CallToolResult:
        """Return the contents of the resource, or the list. Raises `MCPError`."""
        uri = args.get("uri")
        if not uri:
            return CallToolResult(content=[TextContent(text="\n".join(await _listed(client)) or "There is none.")])
        return CallToolResult(content=[_block(one) for one in (await client.read_resource(str(uri))).contents])


async def has_resources(client: Client) -> bool:
    """Return whether the server has a resource or a template now. Many announce resources and have none."""
    if client.server_capabilities.resources is None:
        return False
    try:
        async with asyncio.timeout(LISTING_SECONDS):
            return bool((await client.list_resources()).resources or await _templates(client))
    except (MCPError, TimeoutError, ValidationError):
        return False


def _block(contents: TextResourceContents | BlobResourceContents) -> ContentBlock:
    if isinstance(contents, TextResourceContents):
        return TextContent(text=contents.text)
    return EmbeddedResource(resource=contents)


async def _listed(client: Client) -> list[str]:
    """Return a line for each resource and template."""
    lines: list[str] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_resources(cursor=cursor)
        lines += [_line(resource.uri, resource) for resource in page.resources]
        cursor = page.next_cursor
        if cursor is None or len(lines) >= MAX_LISTED:
            break
    left_out = [f"[more than {MAX_LISTED:,} resources, the rest is left out]"] if cursor is not None else []
    return [*lines[:MAX_LISTED], *left_out, *await _templates(client)]


async def _templates(client: Client) -> list[str]:
    """Return a line for each template on the first page; few servers have any."""
    try:
        page = await client.list_resource_templates()
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND:
            return []
        raise
    return [_line(f"template {one.uri_template}", one) for one in page.resource_templates[:MAX_LISTED]]


def _line(address: str, one: Resource | ResourceTemplate) -> str:
    r"""Return the line of a resource: address, name, kind and description.

    >>> _line("x://y", Resource(uri="x://y", name="Y", mime_type="text/csv", description="Two\nlines"))
    'x://y - Y (text/csv): Two lines'
    """
    kind = f" ({one.mime_type})" if one.mime_type else ""
    description = " ".join((one.description or "").split())[:MAX_DESCRIPTION_CHARS]
    return f"{address} - {one.title or one.name}{kind}{f': {description}' if description else ''}"
