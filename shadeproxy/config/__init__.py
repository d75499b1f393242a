"""The configuration. Only the composition root and the command line read it; other parts get their values."""

from shadeproxy.config.settings import Settings

__all__ = ["Settings"]
