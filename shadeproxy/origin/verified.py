"""``VerifiedOrigin``: checks whole bodies against the checksum that the origin sends with them.

Laws: the last byte of a body is passed on only if its checksum is right, so a damaged body never looks
complete and is never cached. A body of up to ``HELD_BYTES`` is verified before it is handed out. If it is
damaged, it is read once more. A body without a checksum, and a part of a body, are not verified here. Only
the client can verify those. Source: "Checking object integrity in Amazon S3", S3 user guide.
"""

import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from types import TracebackType
from typing import Unpack

import structlog

from shadeproxy.core.checksums import FIELDS, Checksum, make_checksum
from shadeproxy.core.errors import BodyDamaged
from shadeproxy.core.types import Headers, ObjectRef, names_of
from shadeproxy.origin.base import (
    Arrived,
    OpenOptions,
    Origin,
    OriginRead,
)
from shadeproxy.origin.wrapping import WrappedOrigin

_log = structlog.get_logger(__name__)

HELD_BYTES = 128 * 1024
_TYPE = "x-amz-checksum-type"


class VerifiedOrigin(WrappedOrigin):
    """Verifies bodies of ``inner``; see ``Origin`` for the methods. Wrap it around retries, so that a body
    that continues after a break is verified as one.
    """

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        handed = options.get("handed")
        check = None if handed is None else handed.check
        if options.get("span") is not None and not isinstance(check, Check):
            return self._inner.open(ref, **options)
        return _VerifiedRead(self._inner, ref, options, check if isinstance(check, Check) else None)


class _VerifiedRead:
    """A read of a whole object. ``begun``: the checksum of its first bytes, if this read continues after
    them.
    """

    def __init__(
        self, inner: Origin, ref: ObjectRef, options: OpenOptions, begun: "Check | None" = None
    ) -> None:
        self._inner, self._ref, self._options = inner, ref, options
        self._begun = begun
        self._opened: AbstractAsyncContextManager[OriginRead] | None = None

    async def __aenter__(self) -> OriginRead:
        handed = self._options.get("handed")
        if handed is not None and isinstance(handed.error, BodyDamaged):
            handed.take_error()
            return await self._attempt()
        try:
            return await self._attempt()
        except BodyDamaged:
            return await self._attempt()

    async def _attempt(self) -> OriginRead:
        """Open the read and verify its body, once. Raises BodyDamaged."""
        opened = self._inner.open(self._ref, **self._options)
        reading = await opened.__aenter__()
        # A read that holds its body in memory also holds a slot, so the number of slots limits the memory.
        self._opened = opened
        if self._begun is not None:
            return guarded(reading, self._begun, self._ref)
        check = check_of(reading.meta.headers)
        if check is None:
            return reading
        try:
            return await self._verified(reading, check)
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise

    async def _verified(self, reading: OriginRead, check: "Check") -> OriginRead:
        if reading.span.length > HELD_BYTES:
            return guarded(reading, check, self._ref)
        body = memoryview(bytearray(reading.span.length))
        await reading.read_into(body, lambda _count: None)
        check.update(body)
        _require(check, self._ref)
        held = _Held(body)
        return OriginRead(reading.meta, reading.span, held, held.receive, pass_on=reading.pass_on)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.__aexit__(kind, error, trace)


class Check:
    """A checksum that is being computed, and its ``expected`` value."""

    def __init__(self, name: str, running: Checksum, expected: bytes) -> None:
        self.name = name
        self._sum, self._expected = running, expected

    def update(self, data: memoryview | bytes) -> None:
        self._sum.update(data)

    @property
    def is_right(self) -> bool:
        return self._sum.digest() == self._expected


def check_of(headers: Headers) -> Check | None:
    """Return a check of the whole body by a checksum in ``headers``; None if they have no such checksum."""
    places = _checksum_places(*names_of(headers))
    if not places:
        return None
    fields = {name: headers[place][1] for name, place in places}
    if fields.get(_TYPE) == "COMPOSITE":
        return None
    for name in FIELDS:
        # "<value>-<parts>" is a checksum of the parts' checksums, which does not check the body as a whole.
        value = fields.get(name, "")
        if not value or "-" in value:
            continue
        checksum = make_checksum(name)
        assert checksum is not None, "of every field that is known"
        try:
            return Check(name, checksum, base64.b64decode(value, validate=True))
        except ValueError:
            continue
    return None


@lru_cache(maxsize=64)
def _checksum_places(*names: str) -> tuple[tuple[str, int], ...]:
    """Return the names and positions of the checksum fields. The result is cached, because most answers of an
    origin have the same fields.
    """
    lowered = [(name.lower(), place) for place, name in enumerate(names)]
    return tuple(pair for pair in lowered if pair[0] == _TYPE or pair[0] in FIELDS)


def guarded(reading: OriginRead, check: Check, ref: ObjectRef) -> OriginRead:
    """Return ``reading`` with its last piece held back until the checksum is found to be right."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        held = b""
        async for chunk in reading.chunks:
            check.update(chunk)
            if held:
                yield held
            held = chunk
        _require(check, ref)
        yield held

    async def receive(buffer: memoryview, arrived: Arrived) -> None:
        position = held = 0

        def note(count: int) -> None:
            nonlocal position, held
            check.update(buffer[position : position + count])
            position += count
            held = count if position == len(buffer) else 0
            if not held:
                arrived(count)

        if len(buffer) < reading.span.length:
            await reading.read_into(buffer, arrived)  # The body is not read to its end.
            return
        await reading.read_into(buffer, note)
        _require(check, ref)
        arrived(held)

    return OriginRead(reading.meta, reading.span, chunks(), receive, doubtful=True, pass_on=reading.pass_on)


def _require(check: Check, ref: ObjectRef) -> None:
    if not check.is_right:
        raise damage_of(check, ref)


def damage_of(check: Check, ref: ObjectRef) -> BodyDamaged:
    """Log that a body does not match ``check``, and return the error for that."""
    _log.warning("the origin sent a damaged body", ref=str(ref), checksum=check.name)
    return BodyDamaged(f"the body of {ref} that the origin sent is not that of its {check.name}")


class _Held:
    """A body that is held in memory. A reader gets it in one piece, or copied into a buffer."""

    def __init__(self, body: memoryview) -> None:
        self._body = body

    def __aiter__(self) -> "_Held":
        return self

    async def __anext__(self) -> bytes:
        if not self._body:
            raise StopAsyncIteration
        body, self._body = bytes(self._body), self._body[:0]
        return body

    async def receive(self, buffer: memoryview, arrived: Arrived) -> None:
        if count := len(buffer):
            buffer[:], self._body = self._body[:count], self._body[count:]
            arrived(count)
