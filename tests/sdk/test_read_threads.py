"""The threads that read the samples of a batch do all that an executor does, but hold up no end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, wait

import pytest

from shadeproxy_sdk.read_threads import ReadThreads

READ = """
import sys
import shadeproxy_sdk as shade
from shadeproxy_sdk.manifest import Entry, Manifest
client = shade.Client(sys.argv[1], s3_endpoint=sys.argv[1])
print("reading", flush=True)
client.read_many(Manifest.from_entries("x", [Entry("b", f"k{n}") for n in range(64)]), range(64))
"""


def reading():
    return [thread for thread in threading.enumerate() if thread.name == "shade-read"]


def test_an_interrupt_ends_a_process_that_looks_for_its_proxy():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS")}
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    process = subprocess.Popen(
        [sys.executable, "-c", READ, f"http://127.0.0.1:{closed.getsockname()[1]}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        assert process.stdout.readline() == b"reading\n"
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
        assert said.endswith(b"KeyboardInterrupt\n")
    finally:
        process.kill()
        process.communicate()
        closed.close()


def test_few_threads_make_all_calls_and_end_with_the_pool():
    threads, release = ReadThreads(3), threading.Event()
    before = len(reading())
    held = [threads.submit(release.wait, 10) for _ in range(3)]
    waiting = [threads.submit(divmod, number, 7) for number in range(50)]
    assert len(reading()) - before == 3
    assert waiting[-1].cancel()
    release.set()
    assert all(one.result() for one in held)
    assert [one.result() for one in waiting[:-1]] == [divmod(number, 7) for number in range(49)]
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result()
    with pytest.raises(CancelledError):
        waiting[-1].result()
    assert list(threads.map(str, range(9))) == list(map(str, range(9)))
    assert len(reading()) - before == 3
    del threads
    deadline = time.monotonic() + 10
    while len(reading()) > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_thread_is_enough_for_calls_one_after_another():
    threads, before = ReadThreads(8), len(reading())
    for number in range(20):
        assert threads.submit(abs, -number).result() == number
        time.sleep(0.002)
    assert len(reading()) - before <= 2
    threads.shutdown()


def test_the_caller_makes_its_calls_while_no_thread_can_be_started(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    threads, here = ReadThreads(3), threading.get_ident()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert [threads.submit(threading.get_ident).result() for _ in range(5)] == [here] * 5
        with pytest.raises(ZeroDivisionError):
            threads.submit(divmod, 1, 0).result()
    assert threads.submit(threading.get_ident).result() != here
    threads.shutdown()


def test_a_shutdown_cancels_the_calls_that_wait():
    threads, release = ReadThreads(1), threading.Event()
    held = threads.submit(release.wait, 10)
    while not held.running():
        time.sleep(0.001)
    waiting = [threads.submit(str) for _ in range(5)]
    threads.shutdown(wait=False, cancel_futures=True)
    assert all(one.cancelled() for one in waiting)
    release.set()
    wait([held], 10)
    with pytest.raises(RuntimeError, match="have ended"):
        threads.submit(str)
    threads.shutdown()
