"""The head of a plain answer of another node, as the client gets it: the bytes that ``Exchange.pass_on``
would send.

Answers of one node have the same fields in the same order. So the decisions on these names are made once, and
kept.
"""

from functools import lru_cache
from itertools import compress
from typing import NamedTuple

from shadeproxy.api.s3.exchange import OWN_FIELDS, with_own
from shadeproxy.api.s3.headers import to_client
from shadeproxy.api.s3.response import connection_fields, render_head
from shadeproxy.cluster.peer_reads import relayed_by
from shadeproxy.core.tracing import NODE_FIELD, REFUSED_FIELD
from shadeproxy.core.types import Headers, names_of


class _FieldOrder(NamedTuple):
    """Decisions on fields of these names. ``shown``: for each field, whether the client gets it. ``source``:
    position of x-shade-cache. ``known``: True if the names alone decide everything, and all fields that the
    proxy adds are there. ``refused``: see ``is_refused``.
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
    """Return whether the node did nothing; see ``REFUSED_FIELD``."""
    return _order(*names_of(headers)).refused


def relayed_head(
    status: int, headers: Headers, node: str, *, request_id: str, now_s: float, keep: bool
) -> bytes:
    """Return the head of an answer of ``node`` with a Content-Length. ``keep``: the connection goes on."""
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
