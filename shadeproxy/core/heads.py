"""Loads the compiled code for heads (_heads.pyx), if it exists and matches its sources.

Law: callers look at ``COMPILED`` in each call. If it is False, they do the same work in Python. So a test can
set ``COMPILED`` to either value, and compare the results.
"""

from shadeproxy.core.compiled import is_made_of

try:
    from shadeproxy.core._heads import SOURCE, SOURCES, HeadReader, render, render_whole
except ImportError:  # No compiler was there when the proxy was installed.
    COMPILED = False
else:
    COMPILED = is_made_of(SOURCE, SOURCES, __file__)

__all__ = ["COMPILED", "HeadReader", "render", "render_whole"]
