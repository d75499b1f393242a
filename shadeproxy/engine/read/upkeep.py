"""Inspecting and purging cached objects, for people. Never part of a read."""

import asyncio

import numpy as np

from shadeproxy.core.errors import WriteRefused
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.freshness.versions import Versions
from shadeproxy.engine.index.metadata import KnownMetadata
from shadeproxy.engine.read.single_flight import SingleFlight
from shadeproxy.engine.rules import Age, Rules
from shadeproxy.engine.storage.page_cache import PageCache

Purged = tuple[int, int, int]
"""Objects, pages and bytes that were dropped."""

Inspected = tuple[KnownMetadata, Age, list[tuple[int, str, int, bool]]]
"""An object's metadata, its age by the rules, and its pages as ``PageCache.pages`` returns them."""


async def purge(
    cache: PageCache, flights: SingleFlight, versions: Versions, place: ObjectRef, *, dry_run: bool
) -> Purged:
    """Drop all cached pages under ``place``, whose key is a prefix. Return the number of objects, pages and
    bytes.

    A dry run only counts. Raises WriteRefused if a medium can neither erase the pages nor note that it must:
    then the pages could come back after a restart.
    """
    bucket, prefix, namespace = place
    found = await cache.find_under(bucket, prefix, namespace)
    table = cache.residents
    hashes, size_bytes = table.object_hash[found], int(table.body_bytes[found].sum())
    counted = len(await asyncio.to_thread(np.unique, hashes)), len(found), size_bytes
    if not dry_run:
        # Invalidate flights first: otherwise their pages would be stored after the purge.
        flights.invalidate(lambda ref: ref.is_under(bucket, prefix, namespace))
        await versions.forget_prefix(bucket, prefix, namespace)
        await cache.drop_under(bucket, prefix, "purged", namespace)
        await cache.erasing.keep_purged()
        if refused := cache.erasing.any_unmarked():
            raise WriteRefused(refused)
    return counted


async def inspect(
    cache: PageCache, versions: Versions, rules: Rules, ref: ObjectRef, now_s: float
) -> Inspected | None:
    """Return the object's metadata, age and pages; None if the object is unknown."""
    known = await versions.known(ref) or await cache.listing.known(ref)
    if known is None:
        return None
    return known, rules.of(ref).age(known.validated_s, now_s), cache.listing.pages_of(ref, known.meta.etag)
