"""The composition root: the only package that knows the configuration and every part."""

from shadeproxy.app.origins import build_origin
from shadeproxy.app.serve import serve

__all__ = ["build_origin", "serve"]
