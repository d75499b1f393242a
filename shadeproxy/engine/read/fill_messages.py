"""Messages between a worker that fetches pages and the coordinator, which decides about these pages.

A fill begins with ``BeginFill``; the coordinator answers ``AllowFill`` or ``RefuseFill``. After ``AllowFill``
the worker asks the origin, and sends ``FillHead``, ``FillProgress`` and ``FillComplete``, or ``FillFailure``.
It sends ``ClientLeft`` when its client has left. The coordinator may send ``AbortFill`` at any time. After a
failure the coordinator fills the rest of the page, and reports its progress by ``FillProgress``.

A prefetch begins with ``OrderFill`` of the coordinator, and continues in the same way. If a page gets a
place, and the worker's write costs less than a copy by the coordinator, the coordinator sends ``WriteBody``
and the worker answers ``BodyWritten``.

``ident`` names the fill, within one worker, and is never used twice. Messages of one turn of the loop travel
in one frame. A message that no client waits for travels with the next message, or alone after a short time.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from shadeproxy.core.types import Headers, JobContext, ObjectMeta


class BeginFill(msgspec.Struct, array_like=True, tag=1, frozen=True, gc=False):
    """A client wants a page that is not resident. ``first`` and ``last``: its range, as in RangeSpec."""

    ident: int
    bucket: str
    key: str
    client: str
    ranged: bool = False
    first: int | None = None
    last: int | None = None
    job: JobContext | None = None


class FillHead(msgspec.Struct, array_like=True, tag=2, frozen=True, gc=False):
    """The head of the answer has come. The body will lie at ``start`` of the fill memory. ``octets``:
    the entity tag and the values of headers have a character for each byte.
    """

    ident: int
    start: int
    length: int
    etag: str
    size: int
    headers: Headers
    doubtful: bool
    octets: bool = False

    @property
    def meta(self) -> ObjectMeta:
        """The metadata of the object."""
        if not self.octets:
            return ObjectMeta(self.etag, self.size, self.headers)
        headers = tuple((name, _text_of(value)) for name, value in self.headers)
        return ObjectMeta(_text_of(self.etag), self.size, headers)

    def in_octets(self) -> "FillHead":
        """Return the same message, which can be sent also if the metadata is not UTF-8."""
        headers = tuple((name, _octets_of(value)) for name, value in self.headers)
        return msgspec.structs.replace(self, etag=_octets_of(self.etag), headers=headers, octets=True)


class FillProgress(msgspec.Struct, array_like=True, tag=3, frozen=True, gc=False):
    """``filled`` bytes of the body have come."""

    ident: int
    filled: int


class FillComplete(msgspec.Struct, array_like=True, tag=4, frozen=True, gc=False):
    """All bytes of the body have come, nothing came after them, and they were verified."""

    ident: int


class FillFailure(msgspec.Struct, array_like=True, tag=5, frozen=True, gc=False):
    """The worker cannot go on. ``error``: name of a class of core/errors.py; "": nothing went wrong.

    ``received`` bytes came before the failure. ``final``: another attempt would not help.
    """

    ident: int
    error: str = ""
    text: str = ""
    received: int = 0
    final: bool = False


class ClientLeft(msgspec.Struct, array_like=True, tag=6, frozen=True, gc=False):
    """The client has left. ``start`` and ``stop``: the span of the object in its answer; -1: it had no
    answer.
    """

    ident: int
    start: int = -1
    stop: int = -1
    served: bool = False


class OriginKeys(msgspec.Struct, array_like=True, tag=7, frozen=True, gc=False):
    """The credentials for requests to the origin from now on. ``access_key`` "": do not sign the requests."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return "OriginKeys(...)"


class AllowFill(msgspec.Struct, array_like=True, tag=8, frozen=True, gc=False):
    """Ask the origin for a page, or for ``part`` (start and stop within the page). ``span``: the span of the
    object to request; None: the whole object.
    """

    ident: int
    number: int
    part: tuple[int, int] | None
    span: tuple[int, int] | None
    if_match: str | None


class RefuseFill(msgspec.Struct, array_like=True, tag=9, frozen=True, gc=False):
    """Do not fetch: relay the request to the coordinator. ``late``: answer 503 instead, because the client
    got no byte in time.
    """

    ident: int
    late: bool = False


class AbortFill(msgspec.Struct, array_like=True, tag=10, frozen=True, gc=False):
    """End the fill: no reader wants the page, or the fill took too long."""

    ident: int


class FreeExtent(msgspec.Struct, array_like=True, tag=11, frozen=True, gc=False):
    """The coordinator no longer has a view of the extent of fill memory that begins at ``start``."""

    start: int


class OrderFill(msgspec.Struct, array_like=True, tag=12, frozen=True, gc=False):
    """Fetch a page as a prefetch, without a client. ``ident`` is negative. The other fields are as in
    ``AllowFill``.
    """

    ident: int
    bucket: str
    key: str
    span: tuple[int, int] | None
    if_match: str | None


class WriteBody(msgspec.Struct, array_like=True, tag=13, frozen=True, gc=False):
    """Write bytes from ``start`` of the fill memory to ``offset`` of a segment file of the first tier.
    ``file``: see ``BodyPlace``.
    """

    start: int
    length: int
    segment: int
    offset: int
    file: tuple[int, int]


class BodyWritten(msgspec.Struct, array_like=True, tag=14, frozen=True, gc=False):
    """The worker has written the body at ``start`` of the fill memory. ``hashed``: its hash; None: writing
    failed.
    """

    start: int
    hashed: int | None


_TOGETHER_S = 0.001
"""Longest time for which a message waits for another one, to share its frame. One more message in a frame
costs the coordinator a fraction of what one more frame costs.
"""

FromWorker = BeginFill | FillHead | FillProgress | FillComplete | FillFailure | ClientLeft | BodyWritten
FromCoordinator = (
    OriginKeys | AllowFill | OrderFill | RefuseFill | AbortFill | FreeExtent | FillProgress | WriteBody
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
    """Sends the messages of one turn of the loop together, by ``say(frame)``.

    ``behind``: called if ``say`` returns False, because the other process does not read its messages fast
    enough.
    """

    def __init__(self, say: Callable[[bytes], bool], behind: Callable[[], None]) -> None:
        self._say = say
        self._behind = behind
        self._messages: list[msgspec.Raw] = []
        self._is_due = False  # True if the waiting messages are sent in the next turn.
        self._timer: asyncio.TimerHandle | None = None

    def send(self, message: msgspec.Struct) -> None:
        """Send the message in the next turn of the loop. Raises UnicodeEncodeError for text that is not valid
        Unicode; then the message is not sent.
        """
        self._messages.append(msgspec.Raw(_encode(message)))
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def send_with_next(self, message: msgspec.Struct) -> None:
        """Send the message with the next one, or alone after ``_TOGETHER_S``. Raises as ``send``."""
        self._messages.append(msgspec.Raw(_encode(message)))
        if not self._is_due and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOGETHER_S, self.flush)

    def flush(self) -> None:
        """Send the waiting messages now."""
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        messages, self._messages = self._messages, []
        if messages and not self._say(_encode(messages)):
            self._behind()


def _octets_of(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def _text_of(octets: str) -> str:
    return octets.encode("latin-1").decode("utf-8", "surrogateescape")
