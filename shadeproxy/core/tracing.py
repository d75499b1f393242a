"""Which client request is being served, and whose, for whoever logs, queues or asks the origin for it.

A context variable: a task inherits it from who started it, so the fill that several readers share carries
the id of the first, and nothing has to be passed along. The fast lane's hits do not touch it: they wait for
nobody and log nothing but their own line.
"""

import itertools
import secrets
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""``x-amz-request-id`` of the answer; "" where no client waits."""

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Who asks, for turns at what is scarce: an access key whose signature was verified, a job, or the address of
the peer; "" where no client waits."""

ORIGIN_FIELD = "x-shade-request-id"
"""The field that tells the origin. Not signed, and no name of Amazon's: servers ignore what they do not
know, while an unsigned ``x-amz-*`` would be refused."""

INSTANCE_FIELD = "x-shade-proxy"
"""The field that tells a proxy, by a name that only it knows, that it sent the request itself."""

NUMBERS = itertools.count(secrets.randbits(60))
"""Of requests; each is taken once."""


def origin_fields(instance: str) -> list[tuple[str, str]]:
    """Return the fields that tell the origin of the request that is served, and of the proxy ``instance``."""
    request_id = REQUEST_ID.get()
    fields = [(ORIGIN_FIELD, request_id)] if request_id else []
    return [*fields, (INSTANCE_FIELD, instance)] if instance else fields


def next_request_id() -> str:
    """16 hexadecimal digits that no other answer of this process carries."""
    return f"{next(NUMBERS):016X}"
