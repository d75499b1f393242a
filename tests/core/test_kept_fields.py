"""Which header fields of an origin are kept with an object."""

import pytest

from shadeproxy.core.kept_fields import kept_of, named_by


def test_names_decide_in_upper_and_lower_case():
    names = ("Content-Type", "SET-COOKIE", "x-amz-meta-x-shade-a", "X-Shade-Any", "Location", "Expires", "Te")
    assert kept_of(*names) == (True, False, True, False, False, True, False)
    assert kept_of() == ()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((), set()),
        (("close",), set()),
        (("Keep-Alive, ,",), set()),
        (("keep-alive , X-A", "x-b"), {"x-a", "x-b"}),
    ],
)
def test_connection_names_fields_beside_its_options(values, named):
    assert named_by(*values) == named
