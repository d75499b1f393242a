"""Finds the namespace of the buckets that a call names.

Law: a call uses the proxy's own namespace unless it names another one. If no configured client reads in the
namespace that a call names, the call is refused; the proxy's own namespace never takes its place.
"""

from shadeproxy.api.control.context import ControlContext
from shadeproxy.core.errors import UnknownName
from shadeproxy.core.types import OWN

OWN_NAME = "shared"
"""The name of the proxy's own namespace in the configuration."""
FIELD = "Namespace of the configuration that the bucket names belong to; by default the proxy's own"
_MOST_NAMED = 10


def require_namespace(context: ControlContext, name: str) -> str:
    """Return the namespace called ``name``; "" and OWN_NAME mean the proxy's own. Raises UnknownName."""
    if name in (OWN, OWN_NAME):
        return OWN
    if name not in context.upstreams:
        raise UnknownName(
            f"no client of the configuration reads in a namespace {name[:200]!r}", hint=_hint(context)
        )
    return name


def _hint(context: ControlContext) -> str:
    others = sorted(name for name in context.upstreams if name != OWN)
    if not others:
        return "leave namespace out: there is only the proxy's own"
    more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    named = ", ".join(others[:_MOST_NAMED])
    return f"leave namespace out for the proxy's own, or name one of {named}{more}"
