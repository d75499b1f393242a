"""Time limits of the origin that would give up every request are refused."""

import pytest

from shadeproxy.config import Settings


@pytest.mark.parametrize("key", ["connect", "read", "first_byte", "window"])
@pytest.mark.parametrize("value", ['"0 s"', "0"])
def test_a_time_limit_of_nothing_is_no_missing_limit(refused, key, value):
    text = refused(f"[origin.timeouts]\n{key} = {value}")
    assert text.startswith(f'{{file}}: origin.timeouts.{key} = {value}: 0 does not mean "no limit"'), text


def test_a_least_rate_of_nothing_is_no_limit(write):
    path = write('[origin.timeouts]\nmin_rate = "0 B"\nread = "1 ms"')
    assert Settings.load(path).origin.timeouts.min_rate == 0
