"""Messages between a worker that fetches pages and the coordinator, which decides about these pages.

A fill begins with ``BeginFill`` of the worker; the coordinator answers ``AllowFill``, ``AllowFills`` or
``RefuseFill``. Once the read is allowed, the worker asks the origin. It sends ``FillHead``, ``FillProgress``
and ``FillComplete``, or ``FillFailure``. It sends ``ClientLeft`` when its client has left. Of a page that
arrives at once, all of this is one message (``FillHead.complete``). The coordinator may send ``AbortFill`` at
any time. After a failure the coordinator fills the rest of the page, and reports its progress by
``FillProgress``.

A prefetch begins with ``OrderFill`` of the coordinator, and continues in the same way. A page that gets a
place may be written by the worker, if this costs less than a copy by the coordinator. Then the coordinator
sends ``WriteBody``, and the worker answers ``BodyWritten``.

``ident`` is the number of a fill within one worker, and is never used twice. Messages of one turn of the loop
travel in one frame. A message that no client waits for travels with the next message, or alone after a short
time.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from shadeproxy.core.types import Headers, JobContext, ObjectMeta


class BeginFill(msgspec.Struct, array_like=True, tag=1, frozen=True, gc=False):
    """A client wants a page that is not resident. ``ranged``: its request has a range, from ``first`` to
    ``last``, as in RangeSpec.
    """

    ident: int
    bucket: str
    key: str
    client: str
    ranged: bool = False
    first: int | None = None
    last: int | None = None
    job: JobContext | None = None


class ClientLeft(msgspec.Struct, array_like=True, tag=6, frozen=True, gc=False):
    """The client has left. ``start``, ``stop``: the span of the object in its answer; -1: it got no answer.
    ``served``: True if it got the whole answer.
    """

    ident: int
    start: int = -1
    stop: int = -1
    served: bool = False


class FillComplete(msgspec.Struct, array_like=True, tag=4, frozen=True, gc=False):
    """All bytes of the body have come and were verified, and no byte came after them. ``left``: set if the
    client left after the last byte had come, and no message has said so.
    """

    ident: int
    left: ClientLeft | None = None


class FillHead(msgspec.Struct, array_like=True, tag=2, gc=False):
    """The head of the origin's answer has come. The body will lie at ``start`` of the fill memory.

    ``octets``: True if each character of the entity tag and of the header values stands for one byte.
    ``filled``: bytes of the body that have come so far. ``complete``: set if all of them have.
    """

    ident: int
    start: int
    length: int
    etag: str
    size: int
    headers: Headers
    doubtful: bool
    octets: bool = False
    filled: int = 0
    complete: FillComplete | None = None

    @property
    def meta(self) -> ObjectMeta:
        """The metadata of the object."""
        if not self.octets:
            return ObjectMeta(self.etag, self.size, self.headers)
        headers = tuple((name, _text_of(value)) for name, value in self.headers)
        return ObjectMeta(_text_of(self.etag), self.size, headers)

    def in_octets(self) -> "FillHead":
        """Return the same message in a form that can be sent even if the metadata is not valid UTF-8."""
        headers = tuple((name, _octets_of(value)) for name, value in self.headers)
        return msgspec.structs.replace(self, etag=_octets_of(self.etag), headers=headers, octets=True)


class FillProgress(msgspec.Struct, array_like=True, tag=3, frozen=True, gc=False):
    """``filled`` bytes of the body have come so far."""

    ident: int
    filled: int


class FillFailure(msgspec.Struct, array_like=True, tag=5, frozen=True, gc=False):
    """The worker cannot continue the fill. ``error``: the name of a class of core/errors.py; "": nothing went
    wrong.

    ``received`` bytes came before the failure. ``final``: True if another attempt would not help.
    """

    ident: int
    error: str = ""
    text: str = ""
    received: int = 0
    final: bool = False


class OriginKeys(msgspec.Struct, array_like=True, tag=7, frozen=True, gc=False):
    """The credentials with which to sign requests to the origin from now on. ``access_key`` "": do not
    sign.
    """

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return "OriginKeys(...)"


class AllowFill(msgspec.Struct, array_like=True, tag=8, frozen=True, gc=False):
    """The worker may ask the origin for the page ``number``, or for ``part`` of it (start and stop within the
    page). ``span``: the span of the object to request; None: the whole object.
    """

    ident: int
    number: int
    part: tuple[int, int] | None
    span: tuple[int, int] | None
    if_match: str | None


class AllowFills(msgspec.Struct, array_like=True, tag=15, frozen=True, gc=False):
    """The worker may ask the origin for whole objects, in any version. ``idents``: one for each read."""

    idents: list[int]


class RefuseFill(msgspec.Struct, array_like=True, tag=9, frozen=True, gc=False):
    """The worker must not fetch the page: it relays the client's request to the coordinator. ``late``: True
    if the worker must answer 503 instead, because the client got no byte in time.
    """

    ident: int
    late: bool = False


class AbortFill(msgspec.Struct, array_like=True, tag=10, frozen=True, gc=False):
    """The worker must end the fill, because no reader wants the page, or because the fill took too long."""

    ident: int


class FreeFillExtents(msgspec.Struct, array_like=True, tag=11, frozen=True, gc=False):
    """The coordinator no longer has a view of the extents at ``starts`` of the fill memory."""

    starts: list[int]


class OrderFill(msgspec.Struct, array_like=True, tag=12, frozen=True, gc=False):
    """The worker must fetch a page as a prefetch, without a client. ``ident`` is negative. The other fields
    are as in ``AllowFill``.
    """

    ident: int
    bucket: str
    key: str
    span: tuple[int, int] | None
    if_match: str | None


class WriteBody(msgspec.Struct, array_like=True, tag=13, frozen=True, gc=False):
    """The worker must write bytes from ``start`` of the fill memory to ``offset`` of a segment file of the
    first tier. ``file``: see ``BodyPlace``.
    """

    start: int
    length: int
    segment: int
    offset: int
    file: tuple[int, int]


class BodyWritten(msgspec.Struct, array_like=True, tag=14, frozen=True, gc=False):
    """The worker has written the body at ``start`` of the fill memory. ``hashed``: the body's hash; None: the
    write failed.
    """

    start: int
    hashed: int | None


_TOGETHER_S = 0.001
"""The longest time for which a message waits for another one, to travel in the same frame. For the
coordinator, one more message in a frame costs a fraction of one more frame.
"""

FromWorker = BeginFill | FillHead | FillProgress | FillComplete | FillFailure | ClientLeft | BodyWritten
FromCoordinator = (
    OriginKeys
    | AllowFill
    | AllowFills
    | OrderFill
    | RefuseFill
    | AbortFill
    | FreeFillExtents
    | FillProgress
    | WriteBody
)

_encode = msgspec.msgpack.Encoder().encode
_FROM_WORKER = msgspec.msgpack.Decoder(list[FromWorker])
_FROM_COORDINATOR = msgspec.msgpack.Decoder(list[FromCoordinator])


def from_worker(frame: bytes) -> Sequence[FromWorker]:
    """Unpack a frame of a worker. Raises msgspec.ValidationError."""
    return _FROM_WORKER.decode(frame)


def from_coordinator(frame: bytes) -> Sequence[FromCoordinator]:
    """Unpack a frame of the coordinator. Raises msgspec.ValidationError."""
    return _FROM_COORDINATOR.decode(frame)


class Outbox:
    """Collects the messages of one turn of the loop, and sends them together by ``say(frame)``.

    ``behind``: called if ``say`` returns False, because the other process does not read its messages fast
    enough.
    """

    def __init__(self, say: Callable[[bytes], bool], behind: Callable[[], None]) -> None:
        self._say = say
        self._behind = behind
        self._messages: list[msgspec.Raw] = []
        self._allowed: list[int] = []
        self._freed: list[int] = []
        self._is_due = False  # True if the waiting messages are sent in the next turn.
        self._timer: asyncio.TimerHandle | None = None

    def send(self, message: msgspec.Struct) -> None:
        """Send the message in the next turn of the loop. Raises UnicodeEncodeError, and sends nothing, if a
        text of the message is not valid Unicode.
        """
        self._messages.append(msgspec.Raw(_encode(message)))
        if not self._is_due:
            self._flush_soon()

    def allow(self, ident: int) -> None:
        """Send ``AllowFills`` for a read in the next turn of the loop. All reads that are allowed in one turn
        share one message.
        """
        self._allowed.append(ident)
        if not self._is_due:
            self._flush_soon()

    def send_with_next(self, message: msgspec.Struct) -> None:
        """Send the message together with the next one, or alone after ``_TOGETHER_S``. Raises as ``send``."""
        self._messages.append(msgspec.Raw(_encode(message)))
        if self._timer is None and not self._is_due:
            self._flush_later()

    def free(self, start: int) -> None:
        """Send ``FreeFillExtents`` for an extent, together with the next message, or alone after
        ``_TOGETHER_S``. All extents that are freed until then share one message.
        """
        self._freed.append(start)
        if self._timer is None and not self._is_due:
            self._flush_later()

    def flush(self) -> None:
        """Send the waiting messages now."""
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        messages, self._messages = self._messages, []
        if self._freed:
            freed, self._freed = self._freed, []
            # These come first, because the fills that follow may need this memory.
            messages.insert(0, msgspec.Raw(_encode(FreeFillExtents(freed))))
        if self._allowed:
            allowed, self._allowed = self._allowed, []
            messages.append(msgspec.Raw(_encode(AllowFills(allowed))))
        if messages and not self._say(_encode(messages)):
            self._behind()

    def _flush_soon(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self.flush)

    def _flush_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TOGETHER_S, self.flush)


def _octets_of(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def _text_of(octets: str) -> str:
    return octets.encode("latin-1").decode("utf-8", "surrogateescape")
