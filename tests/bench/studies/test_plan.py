"""The study of predictions: its page has every setting, and the text that a person wrote is kept."""

from typing import get_args

import pytest

from shadeproxy_bench.predictions.compare import Compared, Group
from shadeproxy_bench.predictions.runs import Point
from shadeproxy_bench.studies.plan.report import by_group, by_setting, plots


def compared(group="demand", *, predicted_s=5.0, link=0.0, outside=False):
    point = Point(0.2, 8, group != "demand", 0.1, link)
    return Compared(point, group, 4.0, predicted_s, 0.02, 2.0, 0.001, -0.002, 0.03, outside)


def test_groups_have_their_errors_and_those_of_the_bound():
    lines = by_group([compared(), compared(predicted_s=4.0), compared("prefetch")]).splitlines()
    assert "| demand | 2 | 12.5% | 25.0% | 50.0% | 50.0% | 2.0% | 0.002 | 0.1% | 3.0 |" in lines
    assert lines[-1].startswith("| prefetch | 1 |")


def test_settings_have_a_line_each():
    lines = by_setting([compared(outside=True), compared("prefetch", link=1e6)]).splitlines()
    far = "| 20%, 8 workers, no order, 100 ms | 4.00 | 5.00 | +25.0% | -50.0% | 2.0% | -0.002 | +3.0 | yes |"
    assert far in lines
    assert lines[-1].startswith("| 20%, 8 workers, announced, 100 ms, 1 MB/s |")


@pytest.mark.parametrize("groups", [("demand",), get_args(Group)])
def test_a_picture_is_drawn(groups, tmp_path):
    path = plots([compared(group) for group in groups], tmp_path)
    assert path.name == "predicted.png"
    assert path.read_bytes()[:4] == b"\x89PNG"
