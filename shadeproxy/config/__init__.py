"""The configuration. Only the composition root and the command line read it; all other parts are given their
values.
"""

from shadeproxy.config.settings import Settings

__all__ = ["Settings"]
