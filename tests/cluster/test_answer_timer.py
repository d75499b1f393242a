"""One timer serves many reads. Each read is given up when its own time is over, and not before."""

import pytest

from shadeproxy.cluster.answer_timer import AnswerTimer


class Loop:
    """A stand-in for the event loop whose time the test sets."""

    def __init__(self):
        self.now_s = 100.0
        self.set = []

    def time(self):
        return self.now_s

    def call_at(self, when_s, callback):
        handle = Handle(when_s, callback)
        self.set.append(handle)
        return handle

    def advance(self, seconds):
        until_s = self.now_s + seconds
        while due := [one for one in self.set if one.callback is not None and one.when_s <= until_s]:
            first = min(due, key=lambda one: one.when_s)
            self.now_s = max(self.now_s, first.when_s)
            callback, first.callback = first.callback, None
            callback()
        self.now_s = until_s

    @property
    def pending(self):
        return [one for one in self.set if one.callback is not None]


class Handle:
    def __init__(self, when_s, callback):
        self.when_s = when_s
        self.callback = callback

    def cancel(self):
        self.callback = None


class Read:
    def __init__(self, loop):
        self.loop = loop
        self.given_up_s = None

    def give_up(self):
        self.given_up_s = self.loop.now_s


@pytest.fixture
def loop():
    return Loop()


def test_each_read_is_given_up_when_its_own_time_is_over(loop):
    timer, reads = AnswerTimer(loop), [Read(loop) for _ in range(4)]
    # The patience with a node changes. So a later read may have to be given up before an earlier one.
    for read, seconds in zip(reads, (3.0, 1.0, 2.0, 2.0), strict=True):
        timer.watch(read, seconds)
    timer.forget(reads[3])
    loop.advance(10.0)
    assert [read.given_up_s for read in reads] == [103.0, 101.0, 102.0, None]
    assert not loop.pending


def test_reads_that_are_answered_set_no_timer_each(loop):
    timer = AnswerTimer(loop)
    for _ in range(900):
        read = Read(loop)
        timer.watch(read, 1.0)
        loop.advance(0.001)
        timer.forget(read)
        assert read.given_up_s is None
    assert len(loop.set) == 1
    loop.advance(5.0)
    assert not loop.pending


def test_a_read_after_a_rest_is_watched_again(loop):
    timer = AnswerTimer(loop)
    for _ in range(3):
        read = Read(loop)
        timer.watch(read, 1.0)
        began_s = loop.now_s
        loop.advance(7.0)
        assert read.given_up_s == began_s + 1.0


def test_a_read_may_begin_when_another_is_given_up(loop):
    timer, second = AnswerTimer(loop), Read(loop)

    class First(Read):
        def give_up(self):
            super().give_up()
            timer.watch(second, 1.0)

    first = First(loop)
    timer.watch(first, 1.0)
    loop.advance(5.0)
    assert (first.given_up_s, second.given_up_s) == (101.0, 102.0)


def test_no_read_is_given_up_after_the_end(loop):
    timer, read = AnswerTimer(loop), Read(loop)
    timer.watch(read, 1.0)
    timer.close()
    timer.close()
    loop.advance(5.0)
    assert read.given_up_s is None
    assert not loop.pending
