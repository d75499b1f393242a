"""The judge of a cluster run knows which versions a read may return."""

import pytest

from shadeproxy_bench.reliability.cluster.bodies import body_of, seq_of_body, size_of
from shadeproxy_bench.reliability.cluster.history import ABSENT, RIGHT, STALE, WRONG, History


@pytest.fixture
def history():
    return History()


def write(history, state, *, at_s=1.0):
    history.carry_out(state, at_s)
    history.acknowledge(state, at_s - 0.5)


def test_after_an_answered_write_only_its_state_is_right(history):
    write(history, 1)
    write(history, 2)
    verdicts = [history.judge(state, history.floor) for state in (ABSENT, 1, 2, 3)]
    assert verdicts == [STALE, STALE, RIGHT, WRONG]


def test_a_read_that_began_before_the_answer_may_return_the_version_before(history):
    write(history, 1)
    floor = history.floor
    write(history, 2)
    assert [history.judge(state, floor) for state in (1, 2)] == [RIGHT, RIGHT]


def test_a_write_without_an_answer_may_be_seen_or_not(history):
    write(history, 1)
    history.carry_out(2, 2.0)
    assert [history.judge(state, history.floor) for state in (1, 2)] == [RIGHT, RIGHT]


def test_a_write_that_is_carried_out_late_may_follow_a_newer_one(history):
    write(history, 1)
    write(history, 3)
    history.carry_out(2, 9.0)
    assert [history.judge(state, history.floor) for state in (1, 2, 3)] == [STALE, RIGHT, RIGHT]
    write(history, 4, at_s=10.0)
    assert [history.judge(state, history.floor) for state in (2, 3, 4)] == [STALE, STALE, RIGHT]


def test_after_an_answered_removal_there_is_nothing(history):
    write(history, 1)
    write(history, ABSENT)
    assert [history.judge(state, history.floor) for state in (ABSENT, 1)] == [RIGHT, STALE]
    write(history, 2, at_s=3.0)
    assert history.judge(ABSENT, history.floor) == STALE


def test_the_answer_to_a_removal_claims_no_later_removal(history):
    history.carry_out(ABSENT, 1.0)  # The answer below belongs to this removal.
    history.carry_out(1, 2.0)
    history.carry_out(ABSENT, 3.0)
    history.acknowledge(ABSENT, 0.5)
    assert history.judge(1, history.floor) == RIGHT


@pytest.mark.parametrize(
    ("told", "offence"),
    [
        (lambda history: history.acknowledge(1, 0.0), "not carried out"),
        (lambda history: history.acknowledge(ABSENT, 0.0), "not carried out"),
        (lambda history: (history.refuse(1), history.carry_out(1, 1.0)), "carried out afterwards"),
        (lambda history: (history.carry_out(1, 1.0), history.refuse(1)), "and refused"),
        (lambda history: (write(history, 1), write(history, 2), history.carry_out(1, 3.0)), "repeated"),
    ],
)
def test_a_write_whose_answer_does_not_match_the_origin_is_an_offence(history, told, offence):
    told(history)
    assert len(history.offences) == 1
    assert offence in history.offences[0]


def test_a_removal_that_was_refused_and_one_that_was_repeated_are_no_offence(history):
    history.refuse(ABSENT)
    history.carry_out(ABSENT, 1.0)
    history.carry_out(1, 2.0)
    history.carry_out(1, 2.5)
    assert not history.offences
    assert history.repeated == 1


def test_a_body_is_known_by_each_of_its_bytes():
    body = body_of(7, 12)
    assert len(body) == size_of(7, 12)
    assert seq_of_body(7, body) == 12
    mixed = body[:-1] + bytes([body[-1] ^ 1])
    half = body_of(7, 13)[: len(body) // 2] + body[len(body) // 2 :]
    for wrong in (mixed, half, body[:-1], b"", body_of(8, 12)):
        assert seq_of_body(7, wrong) is None
