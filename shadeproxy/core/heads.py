"""Loads the compiled heads (_heads.pyx), if they exist and match the sources.

Law: callers ask ``COMPILED`` at each call, and otherwise do the same in Python. So tests compare both forms.
"""

from shadeproxy.core.compiled import is_made_of

try:
    from shadeproxy.core._heads import SOURCE, SOURCES, HeadReader, render, render_whole
except ImportError:  # No compiler was present at installation.
    COMPILED = False
else:
    COMPILED = is_made_of(SOURCE, SOURCES, __file__)

__all__ = ["COMPILED", "HeadReader", "render", "render_whole"]
