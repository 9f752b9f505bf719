"""Hosts and web origins in normal form, so that they compare as in browsers."""

import ipaddress
import re
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

MAX_NAME_CHARS = 253

_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:@\[\]]+)(:(?P<port>[0-9]{0,5}))?")
_HOST_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#\s]+)([/?#]\S*)?")


class Origin(NamedTuple):
    """The origin of a web page. Pages are of the same origin if all three parts are equal."""

    scheme: str
    host: str
    port: int


@lru_cache(maxsize=64)  # every request names its host
def normal_host(host: str) -> str | None:
    """Return a host name or IP address in normal form; `None` if it is neither.

    >>> normal_host("LocalHost."), normal_host("[0:0::1]"), normal_host("127.0.0.1"), normal_host("Bücher.example")
    ('localhost', '::1', '127.0.0.1', 'xn--bcher-kva.example')
    >>> normal_host("a b"), normal_host("user@host"), normal_host(""), normal_host("http://host")
    (None, None, None, None)
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host.removesuffix(".")
    with suppress(ValueError):
        return str(ipaddress.ip_address(bare))
    if len(bare) > MAX_NAME_CHARS:
        return None
    try:
        name = bare.encode("idna").decode().lower()
    except UnicodeError:
        return None
    return name if _HOST_NAME.fullmatch(name) else None


def is_ip_address(host: str) -> bool:
    """Return whether `host` is an IP address, not a name.

    >>> is_ip_address("10.0.0.7"), is_ip_address("::1"), is_ip_address("example.org")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def origin_at(scheme: str, authority: str) -> Origin | None:
    """Return the origin of `authority` (`host` or `host:port`); `None` if it has no valid host.

    >>> origin_at("http", "localhost:8080"), origin_at("https", "[::1]"), origin_at("http", "a@b")
    (Origin(scheme='http', host='localhost', port=8080), Origin(scheme='https', host='::1', port=443), None)
    """
    parts = _AUTHORITY.fullmatch(authority)
    host = normal_host(parts["host"]) if parts else None
    if parts is None or host is None:
        return None
    return Origin(scheme, host, int(parts["port"] or {"http": 80, "https": 443}[scheme]))


def parse_origin(url: str) -> Origin | None:
    """Return the origin of a URL or of an origin's text; `None` if there is none, as for `null`.

    >>> parse_origin("https://Agents.example/chat"), parse_origin("null"), parse_origin("file:///etc")
    (Origin(scheme='https', host='agents.example', port=443), None, None)
    """
    parts = _URL.fullmatch(url)
    return origin_at(parts["scheme"], parts["authority"]) if parts else None
