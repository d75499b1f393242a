"""Calls of people who look at what is cached, or throw some of it away: never part of a read."""

import numpy as np

from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.cache import PageCache
from shadeproxy.engine.flight import SingleFlight
from shadeproxy.engine.metadata import Known
from shadeproxy.engine.rules import Age, Rules
from shadeproxy.engine.versions import Versions

Inspected = tuple[Known, Age, list[tuple[int, str, int, bool]]]
"""What is known of an object, and its pages as ``PageCache.pages`` tells them."""


async def purge(
    cache: PageCache, flights: SingleFlight, versions: Versions, place: ObjectRef, *, dry_run: bool
) -> tuple[int, int, int]:
    """Drop what is cached under ``place``, whose key is a prefix: objects, pages, bytes. A dry run counts."""
    bucket, prefix, namespace = place
    found = await cache.find_under(bucket, prefix, namespace)
    table = cache.residents
    counted = len(np.unique(table.object_hash[found])), len(found), int(table.body_bytes[found].sum())
    if not dry_run:
        # Flights first: what they bring would be stored behind the purge's back.
        flights.invalidate(lambda ref: ref.is_under(bucket, prefix, namespace))
        versions.forget_prefix(bucket, prefix, namespace)
        await cache.drop_under(bucket, prefix, "purged", namespace)
        await cache.erased()
    return counted


async def inspect(
    cache: PageCache, versions: Versions, rules: Rules, ref: ObjectRef, now_s: float
) -> Inspected | None:
    """None: nothing is known of it."""
    known = await versions.known(ref) or await cache.listing.known(ref)
    if known is None:
        return None
    return known, rules.of(ref).age(known.validated_s, now_s), cache.pages(ref, known.meta.etag)
