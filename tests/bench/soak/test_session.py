"""The checker of answers in a soak: the answers that it accepts, and those that it refuses."""

import random
import socket
import threading

import pytest

from shadeproxy_bench.reliability.kit.bodies import LARGEST_BYTES, PAGE_BYTES, DataSet
from shadeproxy_bench.reliability.kit.link import Link
from shadeproxy_bench.reliability.kit.tally import Tally, read_counts
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.soak.session import Session

_DATA = DataSet(1, 10**6)
_NUMBER = _DATA.ranges[4096][0]


@pytest.fixture
def ask(tmp_path):
    """Return a function that asks for an object of 4 KB. The server sends ``answer``, and the function
    returns the checker's counts.
    """

    def exchange(answer, *, acknowledged=0, started=0, starts_meanwhile=False):
        versions = Versions.create(tmp_path / "versions", len(_DATA))
        for _ in range(started):
            versions.start(_NUMBER)
        versions.acknowledge(_NUMBER, acknowledged)
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve():
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    if starts_meanwhile:
                        versions.start(_NUMBER)
                    connection.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            address = server.getsockname()
            session = Session(address, _DATA, versions, Tally(), random.Random(1), Link(address))
            asked = session.asked("get", _NUMBER, (0, 4096), 200)
            session.exchange(asked, session.request("GET", _NUMBER))
            session.link.close()
            thread.join()
        session.tally.write(tmp_path / "tally.json")
        return read_counts([tmp_path / "tally.json"])

    return exchange


def answer(version, *, tag=None, body=None, status="200 OK"):
    body = bytes(_DATA.body(_NUMBER, version)) if body is None else body
    tag = _DATA.tag(_NUMBER, version) if tag is None else tag
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nETag: {tag}\r\n\r\n".encode() + body


def flipped(version):
    body = bytearray(_DATA.body(_NUMBER, version))
    body[2000] ^= 1
    return bytes(body)


def test_the_version_that_was_acknowledged_and_newer_ones_are_right(ask):
    assert ask(answer(1), acknowledged=1, started=2).outcomes == {"ok": 1}
    assert ask(answer(2), acknowledged=1, started=2).outcomes == {"ok": 1}
    assert ask(answer(3), acknowledged=1, started=2, starts_meanwhile=True).outcomes == {"ok": 1}


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (answer(0), "is not of a version 1 .. 2"),
        (answer(3), "is not of a version 1 .. 2"),
        (answer(1, tag=_DATA.tag(_NUMBER + 1, 1)), "is not of a version 1 .. 2"),
        (answer(2, tag=_DATA.tag(_NUMBER, 1)), "wrong bytes for version 1"),
        (answer(1, body=flipped(1)), "wrong bytes for version 1"),
        (
            answer(1, body=bytes(_DATA.body(_NUMBER, 1)[:2048]) + bytes(_DATA.body(_NUMBER, 2)[2048:])),
            "wrong",
        ),
        (answer(1, body=b"short"), "5 bytes, not 4096"),
        (answer(1, status="206 Partial Content"), "status 206, not 200"),
    ],
)
def test_a_wrong_answer_is_noticed(ask, sent, said):
    counts = ask(sent, acknowledged=1, started=2)
    assert counts.outcomes == {"wrong": 1}
    assert said in counts.faults[0]


def test_a_body_that_ends_early_is_an_error_unless_the_object_was_being_written(ask):
    assert ask(answer(0)[:-1]).outcomes == {"error": 1}
    assert ask(answer(0)[:-1], starts_meanwhile=True).outcomes == {"cut beside a write": 1}


def test_only_a_slow_down_is_a_slow_down(ask):
    slow = answer(0, status="503 Slow Down", body=b"<Error><Code>SlowDown</Code></Error>")
    away = answer(0, status="503 Service Unavailable", body=b"<Error><Code>ServiceUnavailable</Code></Error>")
    assert ask(slow).outcomes == {"slow down": 1}
    assert ask(away).outcomes == {"error": 1}


def test_no_page_version_or_object_has_the_bytes_of_another():
    big = _DATA.ranges[LARGEST_BYTES][0]
    body = _DATA.body(big, 0)
    bodies = [bytes(body[start : start + 64]) for start in range(0, LARGEST_BYTES, PAGE_BYTES)]
    bodies += [
        bytes(_DATA.body(number, version)[:64]) for number in _DATA.ranges[4096] for version in range(50)
    ]
    assert len(set(bodies)) == len(bodies)
