"""The certificates of the machine are read once in a process: otherwise each HTTP client reads them, for 30 ms."""

import functools
import ssl

import httpcore2


def read_certificates_once() -> None:
    """Make all HTTP clients share the default TLS settings, which no test changes."""
    ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]
    httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)
