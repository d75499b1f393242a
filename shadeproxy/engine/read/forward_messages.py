"""Messages between a worker that forwards requests and the coordinator.

The worker asks for a slot by ``AskSlot``, and for a write together with a slot by ``BeginWrite``. The
coordinator answers ``Allowed`` or ``Refused``. The worker ends a write by ``EndWrite``, which the coordinator
answers by ``Ended``, and returns a slot by ``EndSlot``. ``EndSlot`` and ``EndWrite`` also withdraw a question
that has no answer yet. ``ident`` is the number of a slot and of its write within one worker, and is never
used twice. All other messages report events, which the coordinator counts.
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
    OtherRegion,
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
        OtherRegion,
        OutcomeUnknown,
        Overloaded,
        ShuttingDown,
        WriteRefused,
        WriteUnconfirmed,
    )
}


class Failure(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An error in a message. ``kind``: the name of its class. ``status`` and ``code``: set only for an
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
        """Return the error of the message. An error whose class is not in ``_KINDS`` becomes
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
    """The write is over. ``is_known``: False if its outcome is unknown, so that the origin may still carry it
    out.
    """

    ident: int
    is_known: bool


class AskSlot(msgspec.Struct, array_like=True, tag=3, frozen=True, gc=False):
    """The worker needs a slot to forward a request of ``client``."""

    ident: int
    client: str


class EndSlot(msgspec.Struct, array_like=True, tag=4, frozen=True, gc=False):
    """The forwarded request is over, so its slot is free."""

    ident: int


class ForwardEnd(msgspec.Struct, array_like=True, tag=5, frozen=True, gc=False):
    """A forwarded request to the origin is over; see ``CountedOrigin.note``. ``started_s``: its start, by a
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
    """A client's request that was forwarded, past the cache, is over; see ``RequestObserver`` of api/s3."""

    operation: str
    bucket: str
    status: int
    bytes_sent: int
    job: JobContext | None


class Allowed(msgspec.Struct, array_like=True, tag=9, frozen=True, gc=False):
    """The worker may send the request to the origin."""

    ident: int


class Refused(msgspec.Struct, array_like=True, tag=10, frozen=True, gc=False):
    """The worker must not send the request. It answers the client with the error."""

    ident: int
    failure: Failure


class Ended(msgspec.Struct, array_like=True, tag=11, frozen=True, gc=False):
    """The coordinator has dropped the objects of the write, so no read can find an older version any more."""

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
