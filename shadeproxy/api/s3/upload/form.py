"""A browser's upload form: the fields before the file, then the file as it arrives.

Laws: the fields before the file are read first, up to a limit of bytes; the file is streamed. The file's
length follows from the request's length, because the file is the last part and every browser ends a form in
the same way. A form that ends differently is refused before the last bytes of its file are passed on. Source:
RFC 7578, and "POST Object" in the S3 API reference.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator

from shadeproxy.core.errors import BodyMismatch, InvalidRequest

MAX_FIELDS_BYTES = 64 * 1024
"""Most bytes before the file: of all fields, with their names. S3 accepts 20 KB, but a policy with many
conditions, or a session token, needs more.
"""

# One parameter of a field's value: a token or a quoted string (RFC 9110 section 5.6.6). Each character is
# looked at once, because the time of a regular expression that tries again grows with the square of the text.
_PARAMETER = re.compile(
    r"""(?:[ \t]*+;)++[ \t]*+([!#$%&'*+.^_`|~0-9A-Za-z-]++)[ \t]*+=[ \t]*+"""
    r"""(?:"((?:[^"\\]|\\.)*+)"|([^\s;"]*+))[ \t]*+""",
    re.DOTALL,
)
_ESCAPED = re.compile(r"""\\(["\\])""")
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{1,70}")
_ORDER = "the file must be the last field, and the form must end with --boundary-- and a line break"


def boundary_of(content_type: str) -> bytes | None:
    """Return the boundary in a Content-Type multipart/form-data; None for other types. Raises
    InvalidRequest.
    """
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        return None
    boundary = _parameters_of(content_type).get("boundary", "")
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
        self._read_bytes = 0

    async def read_fields(self) -> None:
        """Read the fields, up to the first byte of the file. Raises InvalidRequest."""
        await self._until(self._delimiter)
        while True:
            # Leave the line break: it also ends the lines of a part that has none.
            if await self._until(b"\r\n", left=2):
                raise InvalidRequest("The form holds no field that is called file")
            name, filename = _disposition((await self._until(b"\r\n\r\n")).decode("utf-8", "replace"))
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

    async def _until(self, mark: bytes, *, left: int = 0) -> bytes:
        """Return the bytes before ``mark``, and remove these bytes and the mark from the buffer. ``left``:
        this many bytes of the mark stay there.
        """
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > MAX_FIELDS_BYTES:
                raise InvalidRequest(f"A field of the form has more than {MAX_FIELDS_BYTES} bytes")
            if not await self._more():
                raise InvalidRequest("The form ended early", hint=_ORDER)
        taken, removed = bytes(self._buffer[:end]), end + len(mark) - left
        del self._buffer[:removed]
        self._left -= removed
        self._read_bytes += removed
        if self._read_bytes > MAX_FIELDS_BYTES:
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
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            parameters = _parameters_of(value)
            break
    else:
        parameters = {}
    # A file name that is encoded by RFC 2231 (``filename*``) is ignored: RFC 7578 forbids it in forms.
    if not (name := parameters.get("name", "")):
        raise InvalidRequest("A part of the form has no name")
    return name.lower(), parameters.get("filename", "")


def _parameters_of(value: str) -> dict[str, str]:
    """Return the parameters of a header field by lower-case name. Raises InvalidRequest if one of them cannot
    be understood.
    """
    found, at = dict[str, str](), value.find(";")
    while at >= 0 and (parameter := _PARAMETER.match(value, at)) is not None:
        name, quoted, token = parameter.groups()
        found.setdefault(name.lower(), token if quoted is None else _ESCAPED.sub(r"\1", quoted))
        at = parameter.end()
    if at >= 0 and value[at:].strip(" \t;"):
        raise InvalidRequest("A header field of the form has a parameter that cannot be understood")
    return found
