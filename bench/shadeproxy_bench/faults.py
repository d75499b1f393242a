"""Why a row has no number: its own small tree below the product's errors."""

from shadeproxy.core.errors import ShadeProxyError


class BenchError(ShadeProxyError):
    """A row cannot be trusted: wrong bytes, a wrong status, a server that broke off."""


class ReferenceMissing(ShadeProxyError):
    """What ShadeProxy is compared with is not installed here. The text says how to install it."""


class NotBuilt(ShadeProxyError):
    """The part of ShadeProxy that the row measures is not there yet."""
