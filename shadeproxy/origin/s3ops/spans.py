"""Spans and metadata of answers with a range, for ``StoreOrigin.open`` and for the forwarded GetObject."""

from dataclasses import replace

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import ObjectMeta, Span


def clamp(span: Span | None, size_bytes: int) -> Span:
    """Return the part of ``span`` that lies within an object of ``size_bytes``. Raises OriginAnswer 416 if no
    part does.
    """
    if span is None:
        return Span(0, size_bytes)
    found = resolve(span, size_bytes)
    if found.start >= size_bytes:
        raise invalid_range(size_bytes)
    return found


def resolve(span: Span, size_bytes: int) -> Span:
    """Return ``span`` cut at the end of an object of ``size_bytes``, and counted from the object's start."""
    if span.start < 0:
        return Span(max(size_bytes + span.start, 0), size_bytes)
    return Span(span.start, min(span.stop, size_bytes))


def invalid_range(size_bytes: int) -> OriginAnswer:
    """Return a 416 that states the object's size, as RFC 9110 section 15.5.17 asks."""
    unsatisfied = (("Content-Range", f"bytes */{size_bytes}"),)
    return OriginAnswer(416, "InvalidRange", "The requested range is not satisfiable", headers=unsatisfied)


def without_checksums(meta: ObjectMeta) -> ObjectMeta:
    """Return ``meta`` as an answer with a range has it: without checksums of the whole object."""
    kept = tuple(pair for pair in meta.headers if not pair[0].lower().startswith("x-amz-checksum-"))
    return meta if len(kept) == len(meta.headers) else replace(meta, headers=kept)
