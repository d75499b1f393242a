"""``Request``: the parts of an HTTP request, which can be damaged one by one, and the request's bytes. This
module checks nothing.
"""

from dataclasses import dataclass, field
from urllib.parse import quote

Field = tuple[bytes, bytes]


@dataclass
class Request:
    """A request. ``query``: percent-encoded pairs. ``wire``: the body as it is sent, with its framing.
    ``damaged``: True if no client would send the request.
    """

    method: bytes
    path: bytes
    query: list[tuple[bytes, bytes]] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    wire: bytes = b""
    version: bytes = b"HTTP/1.1"
    damaged: bool = False

    @property
    def target(self) -> bytes:
        query = b"&".join(name + b"=" + value if value else name for name, value in self.query)
        return self.path + (b"?" + query if query else b"")

    def add(self, name: str, value: str | bytes) -> None:
        """Append a header field."""
        self.fields.append((name.encode(), value.encode() if isinstance(value, str) else value))

    def has(self, name: bytes) -> bool:
        return any(found.lower() == name for found, _ in self.fields)

    def parameter(self, name: str, value: str = "") -> None:
        """Append a query parameter."""
        self.query.append((quoted(name), quoted(value)))

    def render(self) -> bytes:
        lines = [b" ".join((self.method, self.target, self.version))]
        lines += [name + b": " + value for name, value in self.fields]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.wire


def quoted(text: str) -> bytes:
    """Percent-encode ``text`` as a careful client does."""
    return quote(text, safe="-_.~").encode()


def transfer_chunks(pieces: list[bytes]) -> bytes:
    """Return ``pieces`` as a body in the chunked transfer coding."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"
