"""The client request that is being served, for logging, queueing and requests to the origin.

These are context variables. A task inherits them from its creator, so no function passes them along. A fill
that several readers share carries the id of the first reader. Hits of the fast lane do not set them: they
never wait and log only their own line.
"""

import itertools
import secrets
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""``x-amz-request-id`` of the answer; "" if no client waits."""

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The client, for its turns at scarce resources: an access key with a verified signature, a job, or the
peer's address; "" if no client waits.
"""

ORIGIN_FIELD = "x-shade-request-id"
"""The header field that carries the request id to the origin. It is not signed, and its name is not Amazon's:
servers ignore unknown fields, but refuse an unsigned ``x-amz-*``.
"""

INSTANCE_FIELD = "x-shade-proxy"
"""The header field by which a proxy recognises its own request. Its value is a name that only this proxy
knows.
"""

NUMBERS = itertools.count(secrets.randbits(60))
"""Numbers of requests; each is used once."""


def origin_fields(instance: str) -> list[tuple[str, str]]:
    """Return the header fields that carry the id of the served request and the proxy's ``instance`` to the
    origin.
    """
    request_id = REQUEST_ID.get()
    fields = [(ORIGIN_FIELD, request_id)] if request_id else []
    return [*fields, (INSTANCE_FIELD, instance)] if instance else fields


def next_request_id() -> str:
    """Return 16 hexadecimal digits. No other answer of this process has the same."""
    return f"{next(NUMBERS):016X}"
