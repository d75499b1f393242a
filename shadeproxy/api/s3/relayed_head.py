"""The head of a plain answer of another node, as the client gets it. It has the bytes that
``Exchange.pass_on`` would send.

All answers of one node have the same fields in the same order. So for each list of field names this module
decides once which fields the client gets. The head of a hit gets one more field and stays otherwise
unchanged, so it need not be parsed. If two heads in a row have the same names, a regular expression made of
these names checks the heads that follow.
"""

import re
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

from shadeproxy.api.s3.exchange import OWN_FIELDS, with_own
from shadeproxy.api.s3.headers import to_client
from shadeproxy.api.s3.response import connection_fields, render_head
from shadeproxy.cluster.peer_reads import relayed_by
from shadeproxy.core.tracing import NODE_FIELD, REFUSED_FIELD
from shadeproxy.core.types import Headers, names_of

# A head of printable ASCII. Each field has a value that neither begins nor ends with a blank.
_PLAIN = re.compile(
    rb"HTTP/1\.1 (200 OK|206 Partial Content)\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [!-~](?:[ -~]*[!-~])?\r\n)+\r\n"
)
_VALUE = rb"[!-~][ -~]*(?<! )"
_MARKED = {b"content-length": rb"(?P<length>[0-9]{1,18})", b"content-range": b"(?P<range>%b)" % _VALUE}
_PART_DIGIT = ord("6")
_NAMES = re.compile(rb"\r\n([^:\r]+):")
_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]{1,18})\r\n", re.IGNORECASE)
_RANGE = re.compile(rb"\r\ncontent-range: ([ -~]+)\r\n", re.IGNORECASE)


class PlainHead(NamedTuple):
    """A head of ``size_bytes`` that the client gets unchanged, except for one more field with the name of the
    node. ``length``: bytes of the body. ``content_range``: the value of the field Content-Range; "" in a 200.
    """

    size_bytes: int
    length: int
    content_range: str


def plain_head(memory: memoryview, filled: int) -> PlainHead | None:
    """Return the head at the beginning of ``memory``, whose first ``filled`` bytes have arrived. Return None
    if the head is incomplete, or may not reach the client unchanged.
    """
    known = _KNOWN[filled > 11 and memory[11] == _PART_DIGIT]
    if known.pattern is not None and (found := known.pattern.match(memory, 0, filled)) is not None:
        return PlainHead(found.end(), int(found["length"]), found["range"].decode() if known.is_part else "")
    found = _PLAIN.match(memory, 0, filled)
    if found is None:
        return None
    stop = found.end()
    length, names = _LENGTH.search(memory, 0, stop), tuple(_NAMES.findall(memory, 0, stop))
    if length is None or not _is_unchanged(known.is_part, *names):
        return None
    known.note(names)
    span = _RANGE.search(memory, 0, stop) if known.is_part else None
    return PlainHead(stop, int(length[1]), "" if span is None else span[1].decode())


class _KnownHead:
    """Remembers, for answers of one status, the field names of the last plain head that ``pattern`` did not
    match. ``pattern``: matches a plain head with these names; None until two heads in a row had the same
    names.
    """

    __slots__ = ("_names", "is_part", "pattern")

    def __init__(self, *, is_part: bool) -> None:
        self.is_part = is_part
        self.pattern: re.Pattern[bytes] | None = None
        self._names: tuple[bytes, ...] = ()

    def note(self, names: tuple[bytes, ...]) -> None:
        """Remember the field names of a plain head. If the last head had the same names, make ``pattern`` of
        them.
        """
        if names == self._names:
            self.pattern = _pattern_of(self.is_part, names)
        self._names = names


_KNOWN = (_KnownHead(is_part=False), _KnownHead(is_part=True))


@lru_cache(maxsize=64)
def _pattern_of(is_part: bool, names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return a pattern for plain heads with these field names, which ``_is_unchanged`` accepts."""
    fields = [b"%b: %b\r\n" % (re.escape(name), _MARKED.get(name.lower(), _VALUE)) for name in names]
    status = rb"206 Partial Content" if is_part else rb"200 OK"
    return re.compile(b"".join((rb"HTTP/1\.1 ", status, rb"\r\n", *fields, rb"\r\n")))


def unchanged_head(memory: memoryview, head: PlainHead, node: str) -> bytes:
    """Return the bytes of ``head`` and one more field, with the name of the node that sent it."""
    return b"".join((memory[: head.size_bytes - 2], _node_field(node)))


@lru_cache(maxsize=256)
def _node_field(node: str) -> bytes:
    return f"{NODE_FIELD}: {node}\r\n\r\n".encode()


@lru_cache(maxsize=256)
def _is_unchanged(is_part: bool, *names: bytes) -> bool:
    """Return True if ``relayed_head`` would return these fields in this order, and Content-Length alone tells
    where the body ends.
    """
    lowered = [name.decode().lower() for name in names]
    order = _order(*lowered)
    return (
        order.known
        and not order.refused
        and order.source == len(lowered) - 1
        and all(order.shown[:-1])
        and lowered.count("content-length") == 1
        and lowered.count("content-range") == is_part
    )


class _FieldOrder(NamedTuple):
    """The decisions on heads with one list of field names. ``shown``: for each field, True if the client gets
    it. ``source``: the position of x-shade-cache; -1 if it is missing or repeated. ``known``: True if the
    names alone decide everything, and no field that the proxy adds is missing. ``refused``: True if the node
    refused the request (``is_refused``).
    """

    shown: tuple[bool, ...]
    source: int
    known: bool
    refused: bool


@lru_cache(maxsize=256)
def _order(*names: str) -> _FieldOrder:
    lowered = [name.lower() for name in names]
    sources = [place for place, name in enumerate(lowered) if name == "x-shade-cache"]
    kept = {name for name, _ in to_client(tuple((name, "") for name in names))}
    known = "connection" not in lowered and len(sources) == 1 and OWN_FIELDS.issubset(lowered)
    return _FieldOrder(
        tuple(name in kept for name in names), sources[0] if sources else -1, known, REFUSED_FIELD in lowered
    )


def is_refused(headers: Headers) -> bool:
    """Return True if the node has refused the request, and so has not carried it out; see
    ``REFUSED_FIELD``.
    """
    return _order(*names_of(headers)).refused


def relayed_head(
    status: int, headers: Headers, node: str, *, request_id: str, now_s: float, keep: bool
) -> bytes:
    """Return the head of an answer of ``node`` that has a Content-Length. ``keep``: the connection stays
    open.
    """
    order = _order(*names_of(headers))
    if order.known:
        fields = list(compress(headers, order.shown))
        fields.append(("x-shade-cache", headers[order.source][1]))
    else:
        source = relayed_by(node, headers).source
        fields = with_own(to_client(headers), request_id=request_id, now_s=now_s, source=source)
    fields.append((NODE_FIELD, node))
    if not keep:
        fields, _, _ = connection_fields(fields, has_body=True, keep=keep, http_11=True)
    return render_head(status, fields)
