"""OriginHealth: the state of the origin, as the requests of the proxy show it."""

from email.utils import formatdate

import pytest

from shadeproxy.core.errors import BodyCutShort, OriginAnswer, OriginThrottled, OriginUnavailable
from shadeproxy.origin.health import OriginHealth
from tests.support.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def health(clock):
    return OriginHealth(clock)


@pytest.mark.parametrize("ahead_s", [-4000, 0, 90])
def test_the_clocks_are_compared_by_the_date_of_an_answer(health, clock, ahead_s):
    health.heard_date(formatdate(clock.now_s() + ahead_s, usegmt=True))
    assert health.clock_skew_s == pytest.approx(ahead_s, abs=1.0)


def test_a_date_is_looked_at_once_in_ten_seconds_and_nonsense_says_nothing(health, clock):
    assert health.due
    health.heard_date("no date")
    assert health.clock_skew_s is None
    assert not health.due
    clock.advance(11)
    assert health.due


def test_nothing_is_known_of_an_origin_before_the_first_request_ended(health, clock):
    assert health.answering is health.as_json()["answering"] is None
    assert health.known_s < clock.monotonic_s() - 1e9
    health.attempt_failed(OriginUnavailable("refused"))
    assert health.answering is None, "the request may be repeated"
    health.answered()
    assert health.answering is health.as_json()["answering"] is True
    assert health.known_s == clock.monotonic_s()


def test_an_origin_answers_until_a_request_fails_and_again_with_the_next_answer(health, clock):
    health.gave_up(OriginUnavailable("refused"))
    assert health.answering is False
    assert health.known_s == clock.monotonic_s()
    clock.advance(5)
    assert health.as_json()["last_failure"] == {"kind": "OriginUnavailable", "text": "refused", "age_s": 5.0}
    health.gave_up(OriginAnswer(404, "NoSuchKey"))
    assert health.answering, "that something is not there is an answer"
    assert health.known_s == clock.monotonic_s()


def test_only_codes_about_credentials_are_refusals(health):
    health.gave_up(OriginAnswer(403, "AccessDenied"))
    assert health.refusal is None
    health.gave_up(OriginAnswer(403, "SignatureDoesNotMatch", "X-Amz-Signature=abcdef"))
    shown = health.as_json()["last_refusal"]
    assert shown["kind"] == "SignatureDoesNotMatch"
    assert "abcdef" not in shown["text"]


def test_attempts_are_counted_by_their_kind(health):
    for error in (OriginThrottled("slow"), OriginUnavailable("502"), BodyCutShort("cut")):
        health.attempt_failed(error)
    assert (health.failed, health.throttled) == (3, 1)
