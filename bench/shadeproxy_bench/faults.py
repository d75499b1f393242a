"""Errors that leave a row of the results without a number. They are part of the product's tree of errors."""

from shadeproxy.core.errors import ShadeProxyError


class BenchError(ShadeProxyError):
    """A row cannot be trusted: a client got wrong bytes or a wrong status, or a server broke off."""


class ReferenceMissing(ShadeProxyError):
    """The reference of a comparison is not installed here. The text says how to install it."""


class TooFewCores(ShadeProxyError):
    """The machine has too few processor cores for the measurement of the row."""


class NotBuilt(ShadeProxyError):
    """The part of ShadeProxy that the row measures does not exist yet."""
