"""Interim answers (1xx), which a server may send while it works on a request, before the final answer."""

from collections.abc import Callable
from contextvars import ContextVar

MOST_INTERIM = 16
"""Most interim answers to one request that are accepted. A server usually sends one or two."""

PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"

INTERIM: ContextVar[Callable[[], None] | None] = ContextVar("interim", default=None)
"""The function that ``Connection.ask`` calls at each interim answer to a request sent in this context."""
