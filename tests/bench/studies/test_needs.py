"""The study of needs, shortened to a minute: its rows have the right counts, and its picture is drawn."""

from shadeproxy.hints.needs import JobNeed
from shadeproxy_bench.studies.needs.model import Ended, Found, Loop
from shadeproxy_bench.studies.needs.report import Result, picture, rows

LOOPS = [
    Loop("a", 10.0, 100, JobNeed(slowdown=1.1)),
    Loop("b", 10.0, 100),
    Loop("c", 10.0, 100, JobNeed(slowdown=1.3)),
    Loop("d", 10.0, 100),
]


def found(a, b=(2.0,)):
    epochs = {
        "a": [Ended(number, slowdown, 10.0 * number) for number, slowdown in enumerate(a)],
        "b": [Ended(number + 2, slowdown, 30.0) for number, slowdown in enumerate(b)],
        "c": [],
        "d": [],
    }
    return Found(epochs, 2.5e6, 1e6, {})


def test_epochs_after_the_second_that_exceed_the_need_are_missed():
    result = Result("needs", found([9.0, 9.0, 1.05, 1.2]), 0.0)
    assert rows([result], LOOPS)[-1] == "| needs | 1.12 | 2.00 | - | - | 1 of 2 | 2.50 |"


def test_only_epochs_after_the_newcomer_count_beside_it():
    result = Result("after", found([9.0, 9.0, 1.2, 1.0, 1.0]), 25.0)
    assert rows([result], LOOPS)[-1].startswith("| after | 1.00 | 2.00 | - | - | 0 of 2 |")


def test_a_picture_has_a_panel_for_each_way(tmp_path):
    results = [Result(name, found([1.0, 1.1, 1.2]), 0.0) for name in ("no needs", "needs")]
    assert picture(results, LOOPS, tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
