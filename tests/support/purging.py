"""Purges of an engine, run to their end."""


async def purge_under(engine, bucket, prefix, namespace="", *, dry_run=False):
    """Purge a prefix. Return the numbers of objects, pages and bytes that were purged."""
    purge = engine.purging(bucket, prefix, namespace, dry_run=dry_run)
    await purge.run()
    return purge.progress.done, purge.progress.pages, purge.progress.bytes
