"""Inspecting cached objects, for people. Never part of a read."""

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.index.metadata import KnownMetadata
from shadeproxy.engine.rules import Age, Rules
from shadeproxy.engine.storage.page_cache import PageCache

Inspected = tuple[KnownMetadata, Age, list[tuple[int, str, int, bool]]]
"""An object's metadata, its age by the rules, and its pages as ``PageCache.pages`` returns them."""


async def inspect(
    cache: PageCache, versions: Versions, rules: Rules, ref: ObjectRef, now_s: float
) -> Inspected | None:
    """Return the object's metadata, age and pages; None if the object is unknown."""
    known = await versions.known(ref) or await cache.listing.known(ref)
    if known is None:
        return None
    return known, rules.of(ref).age(known.validated_s, now_s), cache.listing.pages_of(ref, known.meta.etag)
