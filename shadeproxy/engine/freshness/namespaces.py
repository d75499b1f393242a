"""Namespaces of buckets, and the credentials with which the proxy itself reads in each namespace.

At some origins, a bucket name belongs to an account. There each client with credentials of its own has a
namespace of its own, unless the configuration gives several clients one namespace. The proxy also reads when
no client has sent a request: to prefetch, to warm, to check by listings, and for the control listener. For
such a read it uses an upstream that may read in the namespace.
"""

from collections.abc import Mapping

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import OWN, SHARED, Upstream

Upstreams = Mapping[str, Upstream]
"""The upstream of each namespace. The mapping changes when the configuration is reloaded."""

NO_CLIENT = Upstream("no client")
"""Upstream of a namespace in which no configured client reads any more. No origin accepts its credentials."""

ONLY_OWN: Upstreams = {OWN: SHARED}


def upstream_in(upstreams: Upstreams, namespace: str) -> Upstream:
    """Return the upstream that reads in ``namespace``.

    Raises OriginAnswer 403 if no configured client reads in that namespace any more. The proxy's own
    credentials are no substitute: with them the bucket's name means another bucket.
    """
    try:
        return upstreams[namespace]
    except KeyError:
        raise OriginAnswer(
            403, "AccessDenied", f"no client of the configuration reads in the namespace {namespace!r}"
        ) from None
