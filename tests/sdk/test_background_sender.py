"""The thread that delivers reports: each process has one, even after a fork."""

import contextlib
import os
import threading

from shadeproxy_sdk.background_sender import BackgroundSender


def refuse(_thread):
    raise RuntimeError("can't start new thread")


def test_a_forked_child_delivers_by_a_thread_of_its_own():
    delivered = []

    def deliver():
        delivered.append(os.getpid())
        return True

    sender = BackgroundSender(deliver, interval_s=3600.0, name="test")
    sender.start()
    assert sender.running
    assert sender.flush(20)
    child = os.fork()
    if not child:
        inherited = sender.running
        sender.start()
        arrived = sender.flush(20)
        os._exit(0 if arrived and not inherited and delivered[-1] == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sender.running
    assert sender.close(20)


def test_after_its_end_it_starts_no_more():
    sender = BackgroundSender(lambda: True, interval_s=3600.0, name="test")
    sender.close(1)
    sender.start()
    assert not sender.running


def test_who_asks_while_it_starts_makes_no_second_thread(monkeypatch):
    sender = BackgroundSender(lambda: True, interval_s=3600.0, name="test")
    started, start = [], threading.Thread.start

    def slow(thread):
        started.append(thread)
        if len(started) < 3:
            sender.start()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    sender.start()
    assert len(started) == 1
    assert sender.close(20)


def test_where_no_thread_can_be_started_nothing_is_raised_and_the_next_call_tries_again(monkeypatch, caplog):
    sender = BackgroundSender(lambda: True, interval_s=3600.0, name="test")
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            sender.start()
            sender.wake()
            assert not sender.running
        assert not sender.flush(20)
        assert not sender.close(20)
    assert [record.getMessage() for record in caplog.records] == [
        "No thread can be started, so scores wait: can't start new thread"
    ]


def test_once_threads_can_be_started_again_what_waited_is_delivered(monkeypatch):
    sender = BackgroundSender(lambda: True, interval_s=3600.0, name="test")
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        sender.wake()
    sender.wake()
    assert sender.running
    assert sender.flush(20)
    assert sender.close(20)


def test_two_threads_that_start_it_at_once_start_one(monkeypatch):
    sender = BackgroundSender(lambda: True, interval_s=3600.0, name="test")
    delivering, init, both = [], threading.Thread.__init__, threading.Barrier(2)

    def slow(thread, *arguments, **options):
        if options.get("name") == "test":
            delivering.append(thread)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.5)
        init(thread, *arguments, **options)

    reporters = [threading.Thread(target=sender.start) for _ in range(2)]
    monkeypatch.setattr(threading.Thread, "__init__", slow)
    for reporter in reporters:
        reporter.start()
    for reporter in reporters:
        reporter.join()
    assert len(delivering) == 1
    assert sender.close(20)
