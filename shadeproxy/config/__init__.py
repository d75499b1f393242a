"""Configuration: only the composition root and the command line read it, once."""

from shadeproxy.config.settings import Settings

__all__ = ["Settings"]
