"""Namespaces of buckets, and the credentials with which the proxy itself reads in each namespace.

At some origins bucket names belong to accounts. There each client with its own upstream also has its own
namespace, unless the configuration gives several clients one name. The proxy also reads without a request of
a client: to prefetch, to warm, to check by listings, and for the control listener. Such a read uses an
upstream that may read in the namespace.
"""

from collections.abc import Mapping

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import OWN, SHARED, Upstream

Upstreams = Mapping[str, Upstream]
"""The upstream of each namespace. The mapping changes when the configuration is reloaded."""

NO_CLIENT = Upstream("no client")
"""The upstream of a namespace in which no configured client reads any more. No origin accepts its
credentials.
"""

ONLY_OWN: Upstreams = {OWN: SHARED}


def upstream_in(upstreams: Upstreams, namespace: str) -> Upstream:
    """Return the upstream that reads in ``namespace``.

    Raises OriginAnswer 403 if no client reads in that namespace any more: the proxy's own credentials would
    read another bucket of the same name.
    """
    try:
        return upstreams[namespace]
    except KeyError:
        raise OriginAnswer(
            403, "AccessDenied", f"no client of the configuration reads in the namespace {namespace!r}"
        ) from None
