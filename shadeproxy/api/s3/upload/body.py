"""The body of an upload as the origin gets it: decoded, counted, hashed, compared.

Laws: every promise of the client (length, SHA-256, chunk signatures, trailing checksum) is checked before the
last piece of the body is passed on. So an origin that waits for the announced length can never commit a wrong
body. (If no length is announced, the transfer coding marks the end of the body; after an error the proxy does
not send this mark.) `100 Continue` is sent only when the first byte is wanted, so never before the signature
was accepted.

Patience: only the time in which the proxy waits for the client counts, never the time in which it waits for
the origin. A client may keep the proxy waiting for GRACE_S. Each LEAST_BYTES_PER_S bytes that the client
sends add one second, up to GRACE_S. (S3 ends connections that are idle for some 20 s.) Without a limit, a
client that sends a few bytes now and then could hold a connection to the origin for as long as it likes.
"""

import asyncio
import hashlib
import mmap
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing

from shadeproxy.api.s3.request_body import ClientBody
from shadeproxy.api.s3.upload.chunked import ChunkedDecoder
from shadeproxy.api.s3.upload.plan import BodyPlan
from shadeproxy.core.checksums import Checksum, make_checksum, value_of
from shadeproxy.core.errors import (
    BodyIncomplete,
    BodyMismatch,
    BodyTooLarge,
    ClientTooSlow,
    PayloadMismatch,
    ShadeProxyError,
)

GRACE_S = 60.0
LEAST_BYTES_PER_S = 1024


class Patience:
    """The time for which a client may keep the proxy waiting for one body. ``left_s``: the seconds that are
    left of this time.
    """

    def __init__(self) -> None:
        self.left_s = GRACE_S

    async def wait_for(self, arrival: Awaitable[bytes]) -> bytes:
        """Wait for the next bytes, and return them. Raises ClientTooSlow when no time is left."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self.left_s):
                piece = await arrival
        except TimeoutError:
            raise ClientTooSlow(
                "Your socket connection to the server was not read from or written to within the timeout"
                " period. Idle connections will be closed."
            ) from None
        self.note(loop.time() - began_s, len(piece))
        return piece

    def note(self, waited_s: float, size_bytes: int) -> None:
        """Update ``left_s``, because ``size_bytes`` arrived after ``waited_s`` seconds of waiting."""
        self.left_s = min(GRACE_S, self.left_s - waited_s + size_bytes / LEAST_BYTES_PER_S)


async def receive(body: ClientBody) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives. Raises ClientTooSlow, or BodyIncomplete if the body's transfer coding is
    broken or the body ends early.
    """
    if body.awaits_go:
        await body.invite()
    patience = Patience()
    while True:
        piece = body.next_now()
        if piece is None:
            piece = await patience.wait_for(body.next())
        else:
            patience.note(0.0, len(piece))
        if not piece:
            return
        yield piece


class UploadBody:
    """Decodes the body from ``source`` as ``plan`` says. The body can be read only once.

    ``failure``: the error in the body. A caller of the origin sees this error only inside an OriginError.
    """

    def __init__(self, plan: BodyPlan, source: AsyncGenerator[bytes, None]) -> None:
        self.plan = plan
        self.trailers: dict[str, str] = {}
        """The trailing fields. They are complete once ``pieces`` has ended."""
        self.failure: ShadeProxyError | None = None
        self.received_bytes = 0
        """Bytes of the decoded body that have arrived."""
        self._source = source

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the decoded body. Raises BodyMismatch, MalformedBody, SignatureMismatch."""
        plan, decoder = self.plan, None
        if plan.framing is not None:
            decoder = ChunkedDecoder(self._source, plan.framing, plan.verifier)
        digest = hashlib.sha256() if plan.sha256 is not None else None
        checksums = {name: made for name in plan.trailers if (made := make_checksum(name)) is not None}
        length, held = 0, b""
        try:
            async with aclosing(self._source if decoder is None else decoder.pieces()) as decoded:
                async for piece in decoded:
                    length += len(piece)
                    self.received_bytes = length
                    if plan.length is not None and length > plan.length:
                        raise BodyMismatch(f"The body is longer than the {plan.length} bytes announced")
                    if digest is not None:
                        digest.update(piece)
                    for checksum in checksums.values():
                        checksum.update(piece)
                    if length == plan.length:
                        # Hold the last piece back until the checksums are verified. If one is wrong, the
                        # origin gets an incomplete body, and stores nothing.
                        held = piece
                    else:
                        yield piece
            if decoder is not None:
                self.trailers = decoder.trailers
            self._check(length, digest)
            self._check_trailers(checksums)
        except ShadeProxyError as error:
            self.failure = error
            raise
        if held:
            yield held

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises as ``pieces``, and BodyTooLarge if it has more than
        ``limit_bytes``.
        """
        body = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > limit_bytes:
                    raise BodyTooLarge(f"The body of this operation may have at most {limit_bytes} bytes")
        return bytes(body)

    async def hold(self, size_bytes: int) -> memoryview:
        """Return the whole body, which has ``size_bytes`` according to ``plan``. Raises as ``pieces``.

        The body is held in an anonymous mapping and not on the heap. A mapping takes only the memory that the
        body needs, and gives all of it back at once.
        """
        # A mapping must have at least one byte.
        mapping = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                mapping.write(piece)
        return memoryview(mapping)[:size_bytes]

    def _check(self, length: int, digest: "hashlib._Hash | None") -> None:
        if self.plan.length is not None and length != self.plan.length:
            raise BodyIncomplete(f"The body has {length} bytes, not the {self.plan.length} announced")
        if digest is not None and digest.hexdigest() != self.plan.sha256:
            raise PayloadMismatch("The provided x-amz-content-sha256 header does not match what was computed")

    def _check_trailers(self, checksums: dict[str, Checksum]) -> None:
        for name in self.plan.trailers:
            given = self.trailers.get(name)
            if given is None:
                raise BodyMismatch(f"The trailer {name} was announced and did not come")
            if name in checksums and value_of(checksums[name]) != given:
                raise BodyMismatch(f"Value for {name} trailer is invalid")
