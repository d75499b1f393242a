"""Build the clients of the S3 listener, and their rights, from ``[auth]``."""

from shadeproxy.api.s3.auth.clients import ClientKey, Right
from shadeproxy.app.origins import upstream_of
from shadeproxy.config import Settings
from shadeproxy.config.sections import Client
from shadeproxy.core.types import OWN, SHARED, Upstream


def build_clients(settings: Settings) -> tuple[ClientKey, ...]:
    """Build the clients. Raises ConfigError when a secret cannot be read."""
    return tuple(
        ClientKey(
            client.access_key,
            client.secret(),
            session_token=client.session_token(),
            upstream=SHARED if client.upstream.is_shared else upstream_of(client.access_key),
            rights=_rights(client),
            namespace=settings.namespace_of(client),
        )
        for client in settings.auth.clients
    )


def build_upstreams(settings: Settings) -> dict[str, Upstream]:
    """Map each namespace to the credentials with which the proxy itself reads there: its first client's."""
    upstreams = {OWN: SHARED}
    for client in settings.auth.clients:
        if not client.upstream.is_shared:
            upstreams.setdefault(settings.namespace_of(client), upstream_of(client.access_key))
    return upstreams


def has_own_upstreams(settings: Settings) -> bool:
    """Return whether a client has origin rights of its own, so that each hit must be authorised."""
    return any(not client.upstream.is_shared for client in settings.auth.clients)


def _rights(client: Client) -> tuple[Right, ...]:
    allowed = set(client.allow)
    return tuple(
        Right(bucket, prefix, read="read" in allowed, write="write" in allowed, list="list" in allowed)
        for bucket in client.buckets or ["*"]
        for prefix in client.prefixes or [""]
    )
