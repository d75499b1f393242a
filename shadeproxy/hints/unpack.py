"""Reads a manifest body as it arrives: unpacks gzip, splits the bytes into lines, and passes on the lines.

Laws: gzip is recognised by its magic number (JSON lines never start with it), whatever the header fields say.
Bytes and lines are counted while they are unpacked, a piece at a time. A body that unpacks to far more bytes
or lines than its own length is refused, so that a short request cannot cost much work or memory. The work is
CPU-bound: call it on a pool. It stops soon after it is cancelled (core/workpool.py).
"""

import zlib
from collections.abc import Iterator

from shadeproxy.core.errors import BodyTooLarge, MalformedBody
from shadeproxy.core.workpool import raise_if_cancelled
from shadeproxy.hints.datasets import Dataset
from shadeproxy.hints.manifest import ManifestBuilder

MAX_BYTES = 1 << 34
MAX_LINE_BYTES = 16 * 1024
MAX_EMPTY_LINES = 1 << 16
# ``gzip -9`` packs a manifest whose keys have one long prefix to 1/44 of its length: 2.4 bytes a line.
MAX_RATIO = 64
FREE_BYTES = 1 << 20
"""Unpacked bytes that any body may have, whatever its packed length."""
_FREE_LINES = 1 << 14
_PIECE_BYTES = 1 << 16
_PACKED_PIECE_BYTES = 1 << 14
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_ADVICE = "send it unpacked, split the dataset, or let the proxy list it: {bucket, prefix}"


class ManifestReader:
    """Passes the samples of a body to a ManifestBuilder. Call ``feed`` or ``steps`` in order, then ``finish``
    once.
    """

    def __init__(self, builder: ManifestBuilder, *, max_bytes: int = MAX_BYTES) -> None:
        self._builder = builder
        self._max_bytes = max_bytes
        self._seen_bytes = 0
        self._packed_bytes = 0
        self._head = b""
        self._gzip: zlib._Decompress | None = None
        self._started = False
        self._rest = b""
        self._lines = 0
        self._empty_lines = 0

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the body. Raises MalformedBody, InvalidRequest, BodyTooLarge."""
        for _ in self.steps(chunk):
            pass

    def steps(self, chunk: bytes) -> Iterator[None]:
        """Read the next bytes of the body, at most 64 KiB of unpacked bytes in each step, so that the caller
        may pause in between. Raises as ``feed`` does.
        """
        if not self._started:
            chunk = self._head + chunk
            if len(chunk) < len(_GZIP_MAGIC):
                self._head = chunk
                return
            self._started = True
            if chunk.startswith(_GZIP_MAGIC):
                self._gzip = zlib.decompressobj(_GZIP_WINDOW)
        for start in range(0, len(chunk), _PACKED_PIECE_BYTES):
            raise_if_cancelled()
            piece = chunk[start : start + _PACKED_PIECE_BYTES]
            if self._gzip is None:
                self._split(piece)
                yield
            else:
                yield from self._unpack(piece)

    def finish(self) -> Dataset:
        """Return the dataset. Raises as ``feed`` does, and when a gzip body is cut short."""
        if not self._started:
            self._split(self._head)
        if self._gzip is not None and not self._gzip.eof:
            raise MalformedBody("the gzip body ends early", hint="send the whole file")
        if self._rest:
            self._split(b"\n")
        return self._builder.finish()

    def _unpack(self, chunk: bytes) -> Iterator[None]:
        assert self._gzip is not None
        self._packed_bytes += len(chunk)
        try:
            while chunk:
                if self._gzip.eof:
                    self._gzip = zlib.decompressobj(_GZIP_WINDOW)
                self._split(self._gzip.decompress(chunk, _PIECE_BYTES))
                self._bound_unpacked()
                chunk = self._gzip.unconsumed_tail or self._gzip.unused_data
                raise_if_cancelled()
                yield
        except zlib.error as error:
            hint = "pack it again; nothing may follow the last gzip member"
            raise MalformedBody(f"the gzip body is damaged: {error}", hint=hint) from None

    def _bound_unpacked(self) -> None:
        if self._seen_bytes > FREE_BYTES + MAX_RATIO * self._packed_bytes:
            raise BodyTooLarge(
                f"the gzip body unpacks to more than {MAX_RATIO} times its length: {self._seen_bytes} bytes"
                f" from the first {self._packed_bytes}",
                hint=_ADVICE,
            )
        if self._lines > _FREE_LINES + self._packed_bytes:
            raise BodyTooLarge(
                f"the gzip body has more lines than bytes: {self._lines} in the first {self._packed_bytes}",
                hint=_ADVICE,
            )

    def _split(self, data: bytes) -> None:
        self._seen_bytes += len(data)
        if self._seen_bytes > self._max_bytes:
            raise BodyTooLarge(
                f"the manifest is longer than {self._max_bytes} bytes unpacked",
                hint="split the dataset, or let the proxy list it: {bucket, prefix}",
            )
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines += 1
            if line.strip():
                self._builder.add_line(line, self._lines)
            else:
                self._count_empty()
        if len(self._rest) > MAX_LINE_BYTES:
            raise MalformedBody(
                f"line {self._lines + 1} is longer than {MAX_LINE_BYTES} bytes",
                hint="send one JSON object a line",
            )

    def _count_empty(self) -> None:
        self._empty_lines += 1
        if self._empty_lines > MAX_EMPTY_LINES:
            raise MalformedBody(
                f"line {self._lines} is empty, as {MAX_EMPTY_LINES} before it",
                hint="send one JSON object a line",
            )
