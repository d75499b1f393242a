"""The thread that delivers: one a process, also after a fork."""

import os
import threading

from shadeproxy_sdk.background_sender import BackgroundSender


def test_a_forked_child_delivers_by_a_thread_of_its_own():
    delivered = []

    def deliver():
        delivered.append(os.getpid())
        return True

    courier = BackgroundSender(deliver, interval_s=3600.0, name="test")
    courier.start()
    assert courier.running
    assert courier.flush(20)
    child = os.fork()
    if not child:
        inherited = courier.running
        courier.start()
        arrived = courier.flush(20)
        os._exit(0 if arrived and not inherited and delivered[-1] == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert courier.running
    assert courier.close(20)


def test_after_its_end_it_starts_no_more():
    courier = BackgroundSender(lambda: True, interval_s=3600.0, name="test")
    courier.close(1)
    courier.start()
    assert not courier.running


def test_who_asks_while_it_starts_makes_no_second_thread(monkeypatch):
    courier = BackgroundSender(lambda: True, interval_s=3600.0, name="test")
    started, start = [], threading.Thread.start

    def slow(thread):
        started.append(thread)
        if len(started) < 3:
            courier.start()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    courier.start()
    assert len(started) == 1
    assert courier.close(20)
