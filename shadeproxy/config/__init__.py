"""The configuration. Only the composition root and the command line read it. They pass single values of it to
the other parts of the proxy.
"""

from shadeproxy.config.settings import Settings

__all__ = ["Settings"]
