"""The choice between the compiled table of pages and the interpreted one."""

import importlib.util
import sys
from types import ModuleType

import pytest

from shadeproxy.engine import index
from shadeproxy.engine.index import hash_table


@pytest.mark.parametrize("names", [{}, {"SOURCE": "of other sources", "SOURCES": ("_page_table.pyx",)}])
def test_a_module_that_does_not_fit_is_not_used(monkeypatch, names):
    """A module that was compiled by hand does not say what its sources were."""
    other = ModuleType("shadeproxy.engine.index._page_table")
    vars(other).update(names)
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.setattr(index, "_page_table", other, raising=False)
    spec = importlib.util.spec_from_file_location("again", hash_table.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert not again.COMPILED
    assert isinstance(again.page_table(), again.PageTable)
