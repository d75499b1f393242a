"""The composition root: the only place that knows the configuration and every part at once."""

from shadeproxy.app.origins import build_origin
from shadeproxy.app.serve import serve

__all__ = ["build_origin", "serve"]
