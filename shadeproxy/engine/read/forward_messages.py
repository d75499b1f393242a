"""Messages between a worker that forwards requests and the coordinator.

``AskSlot`` asks for a slot, ``BeginWrite`` for a write and its slot; the coordinator answers ``Allowed`` or
``Refused``. ``EndWrite`` ends a write, and the coordinator answers ``Ended``. ``EndSlot`` returns a slot. If
the coordinator has not answered yet, ``EndSlot`` and ``EndWrite`` withdraw the question. ``ident`` names a
slot and its write, within one worker, and is never used twice. The other messages report events, which the
coordinator counts.
"""

from collections.abc import Sequence

import msgspec

from shadeproxy.core.errors import (
    BodyCutShort,
    ConfigError,
    DeadlineExceeded,
    NotOwnerNow,
    OriginAnswer,
    OriginThrottled,
    OriginUnavailable,
    OutcomeUnknown,
    Overloaded,
    ShadeProxyError,
    ShuttingDown,
    WriteRefused,
    WriteUnconfirmed,
)
from shadeproxy.core.types import JobContext
from shadeproxy.engine.read.fill_messages import OriginKeys

_KINDS: dict[str, type[ShadeProxyError]] = {
    kind.__name__: kind
    for kind in (
        BodyCutShort,
        ConfigError,
        DeadlineExceeded,
        NotOwnerNow,
        OriginThrottled,
        OriginUnavailable,
        OutcomeUnknown,
        Overloaded,
        ShuttingDown,
        WriteRefused,
        WriteUnconfirmed,
    )
}


class Failure(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An error in a message. ``kind``: the name of its class. ``status`` and ``code``: set if the error is an
    OriginAnswer.
    """

    kind: str
    text: str
    status: int = 0
    code: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return the message for ``error``."""
        kind, text = type(error).__name__, str(error)
        if isinstance(error, OriginAnswer):
            return cls(kind, _valid(error.message), error.status, _valid(error.code))
        return cls(kind, _valid(text))

    def unpack(self) -> ShadeProxyError:
        """Return the error. An error of a kind that processes do not pass to each other becomes
        OriginUnavailable.
        """
        if self.status:
            return OriginAnswer(self.status, self.code, self.text)
        return _KINDS.get(self.kind, OriginUnavailable)(self.text)


def _valid(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class BeginWrite(msgspec.Struct, array_like=True, tag=1, frozen=True, gc=False):
    """``client`` wants to write. ``refs``: bucket, key and namespace of each object that may change."""

    ident: int
    client: str
    refs: tuple[tuple[str, str, str], ...]


class EndWrite(msgspec.Struct, array_like=True, tag=2, frozen=True, gc=False):
    """The write is over. ``is_known`` False: its outcome is unknown, and the origin may still carry it
    out.
    """

    ident: int
    is_known: bool


class AskSlot(msgspec.Struct, array_like=True, tag=3, frozen=True, gc=False):
    """A request of ``client`` is to be forwarded, and needs a slot."""

    ident: int
    client: str


class EndSlot(msgspec.Struct, array_like=True, tag=4, frozen=True, gc=False):
    """The forwarded request is over: its slot is free."""

    ident: int


class ForwardEnd(msgspec.Struct, array_like=True, tag=5, frozen=True, gc=False):
    """A forwarded request to the origin is over; see ``CountedOrigin.note``. ``started_s``: its start, by the
    clock that all processes share. ``given_up``: True if the request ended early without a fault of the
    origin.
    """

    size_bytes: int
    started_s: float
    failure: Failure | None
    given_up: bool


class ForwardThrottled(msgspec.Struct, array_like=True, tag=6, frozen=True, gc=False):
    """The origin answered that it gets too many requests."""


class RequestEnd(msgspec.Struct, array_like=True, tag=8, frozen=True, gc=False):
    """A client's request that went past the cache is over; see api/s3 ``RequestObserver``."""

    operation: str
    bucket: str
    status: int
    bytes_sent: int
    job: JobContext | None


class Allowed(msgspec.Struct, array_like=True, tag=9, frozen=True, gc=False):
    """The request may be sent to the origin."""

    ident: int


class Refused(msgspec.Struct, array_like=True, tag=10, frozen=True, gc=False):
    """The request must not be sent: answer the client with an error."""

    ident: int
    failure: Failure


class Ended(msgspec.Struct, array_like=True, tag=11, frozen=True, gc=False):
    """The objects of the write are dropped: no read can find an older version any more."""

    ident: int


FromWorker = BeginWrite | EndWrite | AskSlot | EndSlot | ForwardEnd | ForwardThrottled | RequestEnd
FromCoordinator = OriginKeys | Allowed | Refused | Ended

_FROM_WORKER = msgspec.msgpack.Decoder(list[FromWorker])
_FROM_COORDINATOR = msgspec.msgpack.Decoder(list[FromCoordinator])


def from_worker(frame: bytes) -> Sequence[FromWorker]:
    """Unpack a frame of a worker. Raises msgspec.ValidationError."""
    return _FROM_WORKER.decode(frame)


def from_coordinator(frame: bytes) -> Sequence[FromCoordinator]:
    """Unpack a frame of the coordinator. Raises msgspec.ValidationError."""
    return _FROM_COORDINATOR.decode(frame)
