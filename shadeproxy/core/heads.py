"""Loads the compiled code for heads (_heads.pyx), if it exists and matches its sources.

Law: callers look at ``COMPILED`` in each call, and do the same in Python if it is False. So tests can compare
both forms.
"""

from shadeproxy.core.compiled import is_made_of

try:
    from shadeproxy.core._heads import SOURCE, SOURCES, HeadReader, render, render_whole
except ImportError:  # No compiler was there when the proxy was installed.
    COMPILED = False
else:
    COMPILED = is_made_of(SOURCE, SOURCES, __file__)

__all__ = ["COMPILED", "HeadReader", "render", "render_whole"]
