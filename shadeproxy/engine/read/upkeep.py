"""Inspects cached objects, for people. No read does this."""

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.index.metadata import KnownMetadata
from shadeproxy.engine.rules import Age, Rules
from shadeproxy.engine.storage.page_cache import PageCache

Inspected = tuple[KnownMetadata, Age, list[tuple[int, str, int, bool]]]
"""The metadata of an object, its age by the freshness rule, and its pages as ``PageCache.pages`` returns
them.
"""


async def inspect(
    cache: PageCache, versions: Versions, rules: Rules, ref: ObjectRef, now_s: float
) -> Inspected | None:
    """Return the object's metadata, age and pages; None if nothing is known of the object."""
    known = await versions.known(ref)
    if known is None:
        return None
    return known, rules.of(ref).age(known.validated_s, now_s), cache.listing.pages_of(ref, known.meta.etag)
