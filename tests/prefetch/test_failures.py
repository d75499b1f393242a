"""Prefetching pauses after failures in a row, and longer after each further one."""

import pytest

from shadeproxy.core.errors import OriginAnswer, OriginUnavailable, Overloaded
from shadeproxy.prefetch.failures import FailureCounter

AWAY = OriginUnavailable("away")
REFUSED = OriginAnswer(403, "AccessDenied", "no")


@pytest.fixture
def failures():
    return FailureCounter()


def test_the_third_failure_pauses_and_each_further_one_for_longer(failures):
    pauses = [failures.note(AWAY) for _ in range(2000)]
    assert pauses[:5] == [0.0, 0.0, 0.1, 0.2, 0.4]
    assert pauses[-1] == 5.0


def test_a_success_forgets_failures(failures):
    for _ in range(10):
        failures.note(AWAY)
    failures.note_success()
    assert failures.note(AWAY) == 0.0


def test_refusals_of_single_objects_do_not_pause(failures):
    pauses = [failures.note(REFUSED) for _ in range(34)]
    assert pauses == [0.0] * 33 + [0.1]


def test_memory_that_readers_took_is_no_failure(failures):
    assert {failures.note(Overloaded("full")) for _ in range(100)} == {0.0}
