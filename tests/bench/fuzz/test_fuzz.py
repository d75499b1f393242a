"""A short fuzz run passes, makes the same requests each time, and notices planted faults."""

from random import Random

import pytest

from shadeproxy.api.s3 import forward
from shadeproxy.core import dates
from shadeproxy_bench.reliability.fuzz.report import markdown
from shadeproxy_bench.reliability.fuzz.run import fuzz
from shadeproxy_bench.reliability.fuzz.session import _judge, draw, simple
from shadeproxy_bench.reliability.kit.answers import Unreadable

OWN = b"x-amz-request-id: 1\r\nx-shade-cache: ram\r\nDate: now\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" + OWN + b"\r\nbody"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_short_run_finds_nothing(tmp_path):
    found = await fuzz(3000, 7, tmp_path)
    assert [str(failure) for failure in found.failures] == []
    assert found.requests >= 3000
    # With fewer hits of the request cache, the run would not have tested that cache.
    assert found.known > 50
    # All these statuses show that requests were also parsed and answered, and not only refused at once.
    assert {"200", "204", "206", "304", "400", "403", "404", "412", "416", "501"} <= set(found.answers)
    asked = {"GetObject", "PutObject", "PostObject", "DeleteObjects", "CopyObject", "UploadPart", "Invalid"}
    assert asked <= set(found.operations)
    assert "**Passed**: 3," in markdown(found, "a machine")


def test_a_seed_always_makes_the_same_bytes():
    first, again, other = (
        [draw(Random(f"{seed}/{number}"), "bucket") for number in range(50)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


async def test_an_exception_that_nobody_foresaw_is_found(tmp_path, monkeypatch):
    def parse(*_, **__):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(forward, "parse_delete", parse)
    found = await fuzz(600, 1, tmp_path)
    told = "\n".join(map(str, found.failures))
    assert "the server failed: 500" in told
    assert "ZeroDivisionError: broken" in told


async def test_a_date_that_no_calendar_has_is_found_where_it_is_not_caught(tmp_path, monkeypatch):
    # This is the code from before the correction. It answered a GET with such a date by a 500.
    def parse(field):
        return dates.parsedate_to_datetime(field) if field else None

    monkeypatch.setattr("shadeproxy.core.conditions.parse_http_date", parse)
    found = await fuzz(600, 1, tmp_path)
    assert "OverflowError" in "\n".join(map(str, found.failures))


@pytest.mark.parametrize(
    ("sent", "received", "text"),
    [
        ("GET", ANSWER, None),
        ("GET", ANSWER[:-1], "looks as if it had ended well"),
        ("GET", ANSWER * 2, "2 answers to 1 requests"),
        ("GET", b"", "0 answers to 1 requests"),
        ("GET", b"nonsense", "no answer begins"),
        ("HEAD", ANSWER[:-4], None),
    ],
)
def test_what_a_connection_brought_is_judged(sent, received, text):
    case = simple(sent, "/b/k")
    if text is None:
        assert _judge(case, received, was_reset=False) == {"200": 1}
        return
    with pytest.raises(Unreadable, match=text):
        _judge(case, received, was_reset=False)
    # A client that resets its connection need not get all answers.
    if not received.startswith(ANSWER) and received != b"nonsense":
        assert sum(_judge(case, received, was_reset=True).values()) == 1
