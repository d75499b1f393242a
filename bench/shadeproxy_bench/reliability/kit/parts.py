"""Shortens the limits for parts of pages in the process of a proxy, for runs with short pages."""

from shadeproxy.config import Settings
from shadeproxy.engine.placement import density, partial_reads
from shadeproxy.prefetch import parts


def shorten_parts(page_bytes: int) -> None:
    """Make the limits as much shorter than usual as pages of ``page_bytes`` are. Parts of such pages are then
    stored alone, as those of long pages are. Call this before the proxy starts.

    Raises AttributeError if the product has no such limit any more.
    """
    scale = Settings().cache.page_size // page_bytes
    long_bytes, request_bytes = partial_reads.LONG_BYTES // scale, density.REQUEST_BYTES // scale
    for modules, name, limit in (
        ((partial_reads, parts), "LONG_BYTES", long_bytes),
        ((partial_reads, density), "REQUEST_BYTES", request_bytes),
    ):
        for module in modules:
            getattr(module, name)
            setattr(module, name, limit)
