"""Whether the part of the fast lane that is Cython (``_lane.pyx``) is there; an install may do without."""

from importlib import import_module

try:
    import_module("shadeproxy.api.s3._lane")
except ImportError:
    COMPILED = False
else:
    COMPILED = True
