"""The failures that a client of a chaos run tolerates, and those that count as faults of the proxy."""

import random
import socket
import threading

import pytest

from shadeproxy_bench.reliability.chaos.client import excuse
from shadeproxy_bench.reliability.chaos.data import ChaosData
from shadeproxy_bench.reliability.chaos.patience import Patience
from shadeproxy_bench.reliability.chaos.session import HardenedSession
from shadeproxy_bench.reliability.chaos.wire import MORE_BYTES
from shadeproxy_bench.reliability.kit.link import Link
from shadeproxy_bench.reliability.kit.tally import Tally, read_counts
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_sdk.errors import Busy, ControlError, ReadError, Unreachable

DATA = ChaosData(1, 10**6)
NUMBER = DATA.ranges[4096][0]
BODY = bytes(DATA.body(NUMBER, 0))


def answer(status, body, *fields, length=None):
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body) if length is None else length}", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def error(code):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()


@pytest.fixture
def outcome(tmp_path):
    """Return a function that returns the outcome of one GET. The server answers with ``raw``; with None it
    does not answer.
    """

    def ask(raw, asked_status=200):
        versions, tally = Versions.create(tmp_path / "versions", len(DATA)), Tally()
        over = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve():
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(raw or b"")
                    if raw is None:
                        over.wait(30)

            thread = threading.Thread(target=serve)
            thread.start()
            address = server.getsockname()
            link = Link(address, silence_s=0.3)
            session = HardenedSession(address, DATA, versions, tally, random.Random(1), link)
            asked = session.asked("get", NUMBER, (0, len(BODY)), asked_status)
            session.exchange(asked, session.request("GET", NUMBER))
            link.close()
            over.set()
            thread.join()
        tally.write(tmp_path / "tally")
        (only,) = read_counts([tmp_path / "tally"]).outcomes
        return only

    return ask


TAG = f"ETag: {DATA.tag(NUMBER, 0)}"


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (answer(200, BODY, TAG), "ok"),
        (answer(200, BODY[:-1], TAG), "wrong"),  # a truncated answer whose head states the shorter length
        (answer(200, BODY[:-1] + b"?", TAG), "wrong"),
        (answer(200, BODY, f"ETag: {DATA.tag(NUMBER, 1)}"), "wrong"),
        (answer(200, BODY[:-1], TAG, length=len(BODY)), "cut"),
        (b"", "cut"),
        (None, "hang"),
        (answer(503, error("SlowDown"), "Retry-After: 1"), "503 SlowDown"),
        (answer(500, error("InternalError")), "500 InternalError"),
        (answer(503, error("SlowDown")), "error"),  # The answer lacks Retry-After.
        (answer(500, b"Traceback"), "error"),
        (answer(502, error("BadGateway")), "error"),
        (answer(404, error("NoSuchKey")), "wrong"),
    ],
)
def test_an_answer_has_its_outcome(outcome, raw, found):
    assert outcome(raw) == found


def part(total, body=BODY):
    return answer(206, body, TAG, f"Content-Range: bytes 0-{len(BODY) - 1}/{total}")


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (part(len(BODY)), "ok"),
        (part(len(BODY) + MORE_BYTES), "right bytes, total as the origin claimed"),
        (part(len(BODY) + MORE_BYTES, BODY[:-1] + b"?"), "wrong"),
        (part(len(BODY) + MORE_BYTES + 1), "wrong"),
        (part(len(BODY) - 1), "wrong"),
    ],
)
def test_a_part_has_its_outcome(outcome, raw, found):
    assert outcome(raw, 206) == found


def test_nobody_listens(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
        tally = Tally()
        versions = Versions.create(tmp_path / "versions", len(DATA))
        session = HardenedSession(address, DATA, versions, tally, random.Random(1), Link(address))
        session.exchange(session.asked("get", NUMBER, None, 200), session.request("GET", NUMBER))
    tally.write(tmp_path / "tally")
    assert read_counts([tmp_path / "tally"]).outcomes == {"connection refused": 1}


@pytest.mark.parametrize(
    ("failure", "found"),
    [
        (Unreachable("refused"), "no answer in time"),
        (Busy("503 SlowDown"), "no answer in time"),
        (ReadError("x cannot be read: the proxy at y does not answer (z)"), "no answer in time"),
        (ControlError(503, "starting", ""), "control: 503"),
        (ControlError(404, "unknown", ""), "error"),
        (ReadError("x has 5 of the 7 bytes that its manifest promises"), "error"),
    ],
)
def test_failures_of_the_sdk(failure, found):
    assert excuse(failure) == found


def test_what_takes_too_long_is_a_hang(tmp_path, capfd):
    tally = Tally()
    patience = Patience(0.0, tally)
    with patience.over("get"):
        patience.look()
        patience.look()
    patience.look()
    tally.write(tmp_path / "tally")
    counts = read_counts([tmp_path / "tally"])
    assert (counts.outcomes, counts.kinds, patience.gave_up) == ({"hang": 1}, {"get": 1}, True)
    assert "test_what_takes_too_long" in capfd.readouterr().err, "the stack tells where"
