"""Makes digests of the settings in which the proxies of a cluster must agree. Each proxy publishes its
digests, and the others compare them with their own.
"""

import hashlib
from typing import Any

from shadeproxy.app.origins import origin_name, read_bounds
from shadeproxy.config import Settings
from shadeproxy.config.cluster import Cluster
from shadeproxy.core.deadline import LATE_WRITE_S


def origin_digest(settings: Settings) -> str:
    """Return a digest of the origin's name. The proxies of a cluster must have the same origin."""
    return _digest(origin_name(settings))


def agreed(settings: Settings) -> str:
    """Return the settings in which the nodes of a cluster must agree, as one text: cluster.pages, and with
    owned pages a digest of all of them.
    """
    cluster = settings.cluster
    if not cluster.is_owned:
        return cluster.pages
    clients, bucket_names = _clients(settings), settings.origin.bucket_names
    text = repr((cluster.pages, cluster.cut_off, settings.cache.page_size, bucket_names, clients))
    # Each node waits for the end of another node's lease by its own settings, so these must agree too. Leave
    # out default values: nodes of an earlier version, which did not compare these settings, then agree.
    usual = Cluster()
    text += "".join(
        f" {name} {value}"
        for name, value, known in (
            ("lease", cluster.lease, usual.lease),
            ("engine_failover", cluster.engine_failover, usual.engine_failover),
            ("late writes", read_bounds(settings).late_write_s, LATE_WRITE_S),
        )
        if value != known
    )
    return f"{cluster.pages} {_digest(text)}"


def agreement(settings: Settings) -> dict[str, Any]:
    """Return the fields of ``NodeFacts`` by which nodes see whether their settings agree."""
    cluster = settings.cluster
    return {
        "config": agreed(settings),
        "settings": named(settings),
        "lease_s": cluster.lease,
        "failover_s": cluster.engine_failover,
    }


def named(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the settings of which ``agreed`` makes one digest, each with its name and a digest of its own.
    So a proxy can name the settings in which it differs from another one.
    """
    cluster = settings.cluster
    if not cluster.is_owned:
        return ()
    values = {
        "cluster.cut_off": cluster.cut_off,
        "cluster.lease": cluster.lease,
        "cluster.engine_failover": cluster.engine_failover,
        "cache.page_size": settings.cache.page_size,
        "origin.bucket_names": settings.origin.bucket_names,
        "origin.timeouts.read": read_bounds(settings).late_write_s,
        "auth.clients with an upstream of their own": _clients(settings),
    }
    # Short digests suffice to name a difference, and each beat carries them for each node.
    return tuple((name, _digest(repr(value))[:8]) for name, value in values.items())


def _clients(settings: Settings) -> list[tuple[str, str]]:
    """Return access key and namespace of each client with origin credentials of its own. A node names a
    client's upstream when it asks another node, so that node must have the same clients.
    """
    return sorted(
        (client.access_key, settings.namespace_of(client))
        for client in settings.auth.clients
        if not client.upstream.is_shared
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
