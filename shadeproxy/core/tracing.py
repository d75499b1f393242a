"""The client request that is being served, for logging, queueing and requests to the origin.

The values are context variables. A task inherits them from its creator, so no function passes them along. A
fill that several readers share carries the id of the first reader. The fast lane does not set them for hits:
a hit never waits, and logs only its own line.
"""

import itertools
import secrets
from contextvars import ContextVar

from shadeproxy.core.types import JobContext, ObjectRef

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""``x-amz-request-id`` of the answer; "" if no client waits."""

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The name by which clients take turns at scarce resources: an access key with a verified signature, a job,
or the peer's address; "" if no client waits.
"""

READER: ContextVar[JobContext | ObjectRef | None] = ContextVar("reader", default=None)
"""The job for which the origin is read; the object, if the read names no job."""

ORIGIN_FIELD = "x-shade-request-id"
"""The header field that carries the request id to the origin. The field is not signed, so its name must not
begin with ``x-amz-``: servers refuse an unsigned field of that kind, and ignore any other unknown field.
"""

INSTANCE_FIELD = "x-shade-proxy"
"""The header field by which a proxy recognises its own request. Its value is a name that only this proxy
knows.
"""

RELAYED: ContextVar[bool] = ContextVar("relayed", default=False)
"""True while a request of another node of the cluster is served. Such a request is not sent on to a third
node.
"""

PEER_FIELD = "x-shade-peer"
"""The header field by which a node of a cluster tells another for which client it asks."""

NONCE_FIELD = "x-shade-nonce"
"""The header field that makes a relayed write differ from every other."""

JOB_FIELD = "x-shade-job"
"""The header field that names the job of a read."""

NODE_FIELD = "x-shade-node"
"""The header field of an answer that names the node of the cluster from which it came."""

REFUSED_FIELD = "x-shade-refused"
"""The header field of an answer by which a node says that it did nothing. Either the request must be served
elsewhere, or it does not come from the node's cluster.
"""

NUMBERS = itertools.count(secrets.randbits(60))
"""Numbers for request ids. Each is used once."""


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
