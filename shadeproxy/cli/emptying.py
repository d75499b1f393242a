"""``shadeproxy purge --all``: empty the cache directories of a configuration that no proxy runs on."""

import json

import typer

from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.units import format_size
from shadeproxy.tiers.dropping import drop_cache


def empty_caches(settings: Settings, place: str, *, dry_run: bool, as_json: bool) -> None:
    """Empty the tiers, printing their sizes. Raises ConfigError, also for a ``place`` (a prefix, a URL)."""
    if place:
        raise ConfigError(
            "--all empties the cache directories of this configuration while no proxy runs on them:"
            f" leave out {place}, or --all"
        )
    paths = {"cache.ram.path": settings.cache.ram.path}
    if settings.cache.disk.capacity:
        paths["cache.disk.path"] = settings.cache.disk.path
    # Check all directories before changing any.
    for setting, path in paths.items():
        drop_cache(path, setting=setting, dry_run=True)
    for setting, path in paths.items():
        dropped_bytes = drop_cache(path, setting=setting, dry_run=dry_run)
        if as_json:
            typer.echo(json.dumps({"path": str(path), "bytes": dropped_bytes, "dry_run": dry_run}))
        else:
            typer.echo(f"{'would drop' if dry_run else 'dropped'} {format_size(dropped_bytes)} in {path}")
