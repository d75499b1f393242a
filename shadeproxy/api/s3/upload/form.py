"""A browser's upload form: the fields before the file, then the file as it arrives.

Laws: the fields before the file are read first, up to a limit of bytes; the file is streamed. The file's
length follows from the request's length, because the file is the last part and every browser ends a form in
the same way. A form that ends differently is refused before the last bytes of its file are passed on. Source:
RFC 7578, and "POST Object" in the S3 API reference.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from email.message import Message

from shadeproxy.core.errors import BodyMismatch, InvalidRequest

MAX_FIELDS_BYTES = 64 * 1024
"""Most bytes of all fields before the file. S3 accepts 20 KB, but a policy with many conditions, or a session
token, needs more.
"""

_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{1,70}")
_ORDER = "the file must be the last field, and the form must end with --boundary-- and a line break"


def boundary_of(content_type: str) -> bytes | None:
    """Return the boundary in a Content-Type multipart/form-data; None for other types. Raises
    InvalidRequest.
    """
    message = Message()
    message["Content-Type"] = content_type
    if message.get_content_type() != "multipart/form-data":
        return None
    try:
        boundary = message.get_boundary("")
    except (LookupError, ValueError):
        boundary = ""  # The encoding of the value (RFC 2231) is unknown, or decoding it fails.
    if not _BOUNDARY.fullmatch(boundary):
        raise InvalidRequest("The Content-Type of the form names no valid boundary")
    return boundary.encode()


class Form:
    """An upload form. ``length``: bytes of the whole body. Call ``read_fields`` once, then ``file`` once.

    ``fields``: the values of all fields but the file, by lower-case name. ``filename``: the client's name for
    the file.
    """

    def __init__(self, source: AsyncIterator[bytes], boundary: bytes, length: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename = ""
        self.file_length = 0
        self._source = source
        self._delimiter = b"\r\n--" + boundary
        # The first delimiter has no line break before it. Add one, so that all delimiters are found in the
        # same way.
        self._buffer = bytearray(b"\r\n")
        self._left = length + 2

    async def read_fields(self) -> None:
        """Read the fields, up to the first byte of the file. Raises InvalidRequest."""
        await self._until(self._delimiter)
        while True:
            if await self._until(b"\r\n"):
                raise InvalidRequest("The form holds no field that is called file")
            name, filename = _disposition(
                (await self._until(b"\r\n\r\n", before=b"\r\n")).decode("utf-8", "replace")
            )
            if name == "file":
                break
            if name in self.fields:
                raise InvalidRequest(f"The form holds the field {name} more than once")
            value = await self._until(self._delimiter)
            try:
                self.fields[name] = value.decode()
            except UnicodeDecodeError:
                raise InvalidRequest(f"The field {name} of the form is not UTF-8") from None
        self.filename = filename.replace("\\", "/").rpartition("/")[2]
        self.file_length = self._left - len(self._closing)
        if self.file_length < 0:
            raise InvalidRequest("The form ended early", hint=_ORDER)

    async def file(self) -> AsyncGenerator[bytes, None]:
        """Yield the file's bytes. Raises BodyMismatch if the form does not end correctly."""
        remaining, tail = self.file_length, b""
        while remaining:
            if not self._buffer and not await self._more():
                raise BodyMismatch("The form ended early")
            piece = bytes(self._buffer[:remaining])
            del self._buffer[: len(piece)]
            remaining -= len(piece)
            seen = tail + piece
            if self._delimiter in seen:
                raise BodyMismatch(f"The form goes on after its file: {_ORDER}")
            tail = seen[-len(self._delimiter) + 1 :]
            yield piece
        while len(self._buffer) < len(self._closing) and await self._more():
            pass
        if self._buffer != self._closing:
            raise BodyMismatch(f"The form does not end where its length says: {_ORDER}")

    @property
    def _closing(self) -> bytes:
        return self._delimiter + b"--\r\n"

    async def _until(self, mark: bytes, *, before: bytes = b"") -> bytes:
        """Return the bytes before ``mark``, and remove these bytes and the mark from the buffer. ``before``:
        bytes to put in front of the buffer first.
        """
        self._buffer[:0] = before
        self._left += len(before)
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > MAX_FIELDS_BYTES:
                raise InvalidRequest(f"A field of the form has more than {MAX_FIELDS_BYTES} bytes")
            if not await self._more():
                raise InvalidRequest("The form ended early", hint=_ORDER)
        taken = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        self._left -= end + len(mark)
        if sum(map(len, self.fields.values())) + len(taken) > MAX_FIELDS_BYTES:
            raise InvalidRequest(f"The fields of the form have more than {MAX_FIELDS_BYTES} bytes")
        return taken

    async def _more(self) -> bool:
        piece = await anext(self._source, None)
        if piece is None:
            return False
        self._buffer += piece
        return True


def _disposition(head: str) -> tuple[str, str]:
    """Return the lower-case name and the file name that the header lines of a part say. Raises
    InvalidRequest.
    """
    message = Message()
    for line in head.strip("\r\n").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            message["Content-Disposition"] = value.strip()
    # A value that is encoded by RFC 2231 comes as a tuple. RFC 7578 forbids this encoding in forms.
    values = [message.get_param(label, "", header="Content-Disposition") for label in ("name", "filename")]
    name, filename = (value if isinstance(value, str) else "" for value in values)
    if not name:
        raise InvalidRequest("A part of the form has no name")
    return name.lower(), filename
