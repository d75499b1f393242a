"""The client request that is being served, as logging, queues and requests to the origin need to know it.

The values are context variables. A task inherits them from the task that created it, so no function need pass
them along. A fill that several readers share has the request id of its first reader. The fast lane does not
set the values for hits, because a hit never waits, and logs only its own line.
"""

import itertools
import secrets
import weakref
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Protocol

from shadeproxy.core.types import JobContext, ObjectRef

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The ``x-amz-request-id`` of the answer; "" if no client waits."""

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The name under which a client takes turns at scarce resources: an access key whose signature was verified,
a job, or the peer's address; "" if no client waits.
"""

READER: ContextVar[JobContext | ObjectRef | None] = ContextVar("reader", default=None)
"""The job for which the origin is read, or the object that is read if no job is named."""


class ClientConnection(Protocol):
    """The connection to the client that is served."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were given to the connection and that the client has not taken yet."""
        ...

    def cut(self) -> None:
        """Reset the connection, so that the client sees that the answer broke off."""
        ...


CONNECTION: ContextVar[weakref.ref[ClientConnection] | None] = ContextVar("connection", default=None)
"""The connection over which a task answers; None if no client waits. Timers and tasks that a request begins
keep this variable for longer than the request, so the reference is weak.
"""

ORIGIN_FIELD = "x-shade-request-id"
"""The header field that carries the request id to the origin. It is not signed, so its name must not begin
with ``x-amz-``: servers refuse unsigned fields with such names, and ignore any other unknown field.
"""

INSTANCE_FIELD = "x-shade-proxy"
"""The header field by which a proxy recognises a request that it sent itself. Its value is known to this
proxy only.
"""


class WriteSlot:
    """Records whether a write got its slot at the origin. A write sends nothing before it has a slot."""

    __slots__ = ("is_awaited", "is_taken")

    def __init__(self) -> None:
        self.is_awaited = self.is_taken = False

    @property
    def unsent(self) -> bool:
        """True if the write waited for a slot, and got none."""
        return self.is_awaited and not self.is_taken


WRITE_SLOT: ContextVar[WriteSlot | None] = ContextVar("write_slot", default=None)
"""The slot of the write that is being served; None for reads. Tasks that the write creates share it."""


async def note_slot(taking: Awaitable[str]) -> str:
    """Return the slot that ``taking`` acquires, and note it in ``WRITE_SLOT``."""
    if (write := WRITE_SLOT.get()) is None:
        return await taking
    write.is_awaited = True
    slot = await taking
    write.is_taken = True
    return slot


RELAYED: ContextVar[bool] = ContextVar("relayed", default=False)
"""True while a request that came from another node of the cluster is served. It must not be sent on to a
third node.
"""

PEER_FIELD = "x-shade-peer"
"""The header field in which a node of a cluster says for which client it asks another node."""

NONCE_FIELD = "x-shade-nonce"
"""The header field that makes a relayed write differ from every other one, so that a second sending is
recognised.
"""

JOB_FIELD = "x-shade-job"
"""The header field that names the job of a read."""

NODE_FIELD = "x-shade-node"
"""The header field of an answer that names the node of the cluster from which it came."""

REFUSED_FIELD = "x-shade-refused"
"""The header field of an answer by which a node says that it did nothing with the request: another node must
serve the request, or the request does not come from the node's cluster.
"""

NUMBERS = itertools.count(secrets.randbits(60))
"""Numbers for request ids. Each number is used once."""


def origin_fields(instance: str) -> list[tuple[str, str]]:
    """Return the header fields that carry two things to the origin: the id of the served request, and the
    proxy's ``instance``.
    """
    request_id = REQUEST_ID.get()
    fields = [(ORIGIN_FIELD, request_id)] if request_id else []
    return [*fields, (INSTANCE_FIELD, instance)] if instance else fields


def next_request_id() -> str:
    """Return 16 hexadecimal digits that no other answer of this process has."""
    return f"{next(NUMBERS):016X}"
