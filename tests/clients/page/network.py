"""The requests and bytes of a page load, as a browser counts them."""

from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Page


class Network:
    """The requests of a page, as the browser counts them: with all headers, without cached files."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        self._cached: set[str] = set()
        self._bytes: dict[str, int] = {}

    @classmethod
    async def of(cls, page: Page) -> "Network":
        network = cls()
        devtools = await page.context.new_cdp_session(page)
        devtools.on("Network.requestWillBeSent", network._on_request)
        devtools.on("Network.requestServedFromCache", lambda event: network._cached.add(event["requestId"]))
        devtools.on("Network.responseReceived", network._on_response)
        devtools.on("Network.loadingFinished", network._on_end)
        await devtools.send("Network.enable")
        return network

    def _on_request(self, event: dict[str, Any]) -> None:
        self._paths[event["requestId"]] = urlsplit(event["request"]["url"]).path

    def _on_response(self, event: dict[str, Any]) -> None:
        if event["response"]["fromDiskCache"]:
            self._cached.add(event["requestId"])
        self._bytes[event["requestId"]] = event["response"]["encodedDataLength"]

    def _on_end(self, event: dict[str, Any]) -> None:
        self._bytes[event["requestId"]] = event["encodedDataLength"]

    def sizes_since_last_load(self) -> dict[str, int]:
        """Return the bytes of each path."""
        sizes = {path: self._bytes.get(key, 0) for key, path in self._paths.items() if key not in self._cached}
        self._paths.clear()
        return sizes
