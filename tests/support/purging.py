"""Purges of an engine, from begin to end."""


async def purge_under(engine, bucket, prefix, namespace="", *, dry_run=False):
    """Purge a prefix; return how many objects, pages and bytes that were."""
    purge = engine.purging(bucket, prefix, namespace, dry_run=dry_run)
    await purge.run()
    return purge.progress.done, purge.progress.pages, purge.progress.bytes
