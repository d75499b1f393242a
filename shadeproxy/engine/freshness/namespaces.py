"""Namespaces of buckets, and the credentials with which the proxy itself reads there.

At an origin whose bucket names belong to accounts, each client with an upstream of its own has a namespace of
its own, unless the configuration gives several one name. Work of the proxy in a namespace without a client's
request (prefetching, warming, checking by listings, reads of the control listener) needs an upstream that
reads in that namespace.
"""

from collections.abc import Mapping

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import OWN, SHARED, Upstream

Upstreams = Mapping[str, Upstream]
"""The upstream of each namespace. It changes when the configuration is read again."""

NOBODY = Upstream("nobody")
"""Upstream of a namespace that no configured client reads in any more: no origin has such credentials."""

ONLY_OWN: Upstreams = {OWN: SHARED}


def upstream_in(upstreams: Upstreams, namespace: str) -> Upstream:
    """Return the upstream that reads in ``namespace``. Raises OriginAnswer 403 where no client does any
    more: the proxy's own credentials would read another bucket of that name.
    """
    try:
        return upstreams[namespace]
    except KeyError:
        raise OriginAnswer(
            403, "AccessDenied", f"no client of the configuration reads in the namespace {namespace!r}"
        ) from None
