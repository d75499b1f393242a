"""Tombstones are dropped when the erasures are on the medium. Only one ``settle`` runs at a time, and
``finish`` waits for it.
"""

import errno
import os
import threading
from contextlib import contextmanager

import pytest

from shadeproxy.core.identity import object_hash
from shadeproxy.tiers import session
from shadeproxy.tiers.erasures import Erasures
from shadeproxy.tiers.medium import SystemCalls
from shadeproxy.tiers.tombstones import Tombstones


class Held(SystemCalls):
    """System calls whose ``flush`` waits for ``go``. If ``fails`` is True, the first flush fails."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.fails = True

    def flush(self, descriptor):
        self.began.set()
        assert self.go.wait(20)
        if self.fails:
            # The kernel reports a failure only once, so do the same.
            self.fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().flush(descriptor)


@pytest.fixture
def calls():
    made = Held()
    yield made
    made.go.set()


@pytest.fixture
def store(bench, sample, monkeypatch, calls):
    """Return a store in which one object was overwritten. Its medium can lose writes."""
    monkeypatch.setattr("shadeproxy.tiers.erasures.is_tmpfs", lambda _path: False)
    made, _ = bench.open(tombstones=bench.path.parent / "elsewhere", calls=calls)
    location = bench.add(made, sample(1, 5000))
    made.disown(object_hash(sample(1, 1).header.page.ref))
    made.release(location)
    return made


@contextmanager
def meanwhile(action):
    """Run ``action`` on a thread. Yield a list that receives the result."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(action()))
    thread.start()
    yield answers
    thread.join(20)
    assert not thread.is_alive()


def test_a_second_settling_does_not_forget_what_the_first_is_still_flushing(store, calls):
    erasures = store.erasures
    first_turn = erasures.turn()
    with meanwhile(lambda: erasures.settle(first_turn)) as first:
        assert calls.began.wait(20)
        with meanwhile(lambda: erasures.settle(erasures.turn())) as second:
            # A ``settle`` that did not wait for the first one would end within this time.
            threading.Event().wait(0.05)
            names, answered = erasures.tombstones, list(second)
            calls.go.set()
    assert not answered
    assert names == 1
    assert first == [False]
    assert erasures.in_doubt


def test_an_end_waits_for_the_settling_under_way_and_is_not_orderly_when_that_fails(bench, store, calls):
    erasures = store.erasures
    turned = erasures.turn()
    with meanwhile(lambda: erasures.settle(turned)):
        assert calls.began.wait(20)
        with meanwhile(store._close):
            threading.Event().wait(0.05)
            stopped = (bench.path / session.STOPPED_NAME).exists()
            calls.go.set()
    assert not stopped
    assert not (bench.path / session.STOPPED_NAME).exists()
    reopened, _ = bench.open(tombstones=bench.path.parent / "elsewhere")
    assert reopened.erasures.in_doubt


def test_a_settling_that_comes_after_the_end_says_that_it_did_nothing(store, calls):
    calls.fails = False
    calls.go.set()
    turned = store.erasures.turn()
    store._close()
    assert not store.erasures.settle(turned)


def test_what_is_erased_while_a_flush_runs_and_what_it_failed_for_is_flushed_later(store, calls):
    (segment,) = [one for one in store._all_segments() if one.unflushed]

    def failing():
        with pytest.raises(OSError, match="Input/output error"):
            segment.flush()

    with meanwhile(failing):
        assert calls.began.wait(20)
        assert segment.unflushed
        calls.go.set()
    assert segment.unflushed
    calls.go.clear()
    calls.began.clear()
    with meanwhile(segment.flush):
        assert calls.began.wait(20)
        segment.erase(0)
        calls.go.set()
    assert segment.unflushed
    segment.flush()
    assert not segment.unflushed


def test_a_half_that_was_forgotten_meanwhile_is_not_forgotten_twice(tmp_path):
    file = Tombstones(tmp_path / "0.tombstones")
    file.open()
    file.add(1)
    first, second = file.turn(), file.turn()
    file.forget(first)
    file.turn()
    file.add(2)
    file.forget(second)
    other = Tombstones(file.path)
    assert other.read()
    assert other.found == {2}
    file.close()


class _MarkedMeanwhile(dict[int, str]):
    """The reasons for which objects could not get a tombstone. Another thread deletes the reason as soon as a
    reader has found it.
    """

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found


def test_an_object_marked_while_its_reason_is_looked_up_is_no_error() -> None:
    erasures = Erasures("ram", list, note=lambda _error: None, submit=lambda _work: None)
    erasures._unmarked = _MarkedMeanwhile({1: "why"})
    assert erasures.unmarked([1]) in {"", "why"}
