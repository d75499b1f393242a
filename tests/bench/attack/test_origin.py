"""The scripted origin answers as its scripts say, and raises an alarm for requests that no proxy may send."""

import asyncio

import pytest

from shadeproxy_bench.reliability.attack.origin import Act, Repeat, Script, ScriptedOrigin, content, tag_of
from shadeproxy_bench.reliability.attack.wire import Address, Ending, Wire

PATH = "/attack/o000001-0.100"
GET = f"GET {PATH} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
PUT = f"PUT {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".encode()
RIGHT = content(PATH)


@pytest.fixture
async def origin():
    started = ScriptedOrigin()
    await started.start()
    yield started
    started.close()


async def ask(origin, *segments, silent_s=0.3):
    wire = await Wire.open(Address("127.0.0.1", origin.port))
    await wire.send_all(segments, 0.01)
    received = await wire.read_until(lambda _data: False, silent_s=silent_s, limit_s=5.0)
    wire.close()
    return received


async def test_it_is_right_without_a_script(origin):
    answer = (await ask(origin, GET)).data
    assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n")
    assert answer.endswith(b"\r\n\r\n" + RIGHT)
    await ask(origin, PUT[:-2], PUT[-2:])
    assert origin.body_of(PATH) == b"hello"
    assert (await ask(origin, GET)).data.endswith(b"\r\n\r\nhello")
    assert [(one.method, one.body, one.is_whole) for one in origin.asked["o000001"]] == [
        ("GET", b"", True),
        ("PUT", b"hello", True),
        ("GET", b"", True),
    ]
    assert origin.alarms == []


@pytest.mark.parametrize(
    ("steps", "data", "ending"),
    [
        ((Act.TAKE, b"abc", Act.CLOSE), b"abc", Ending.CLOSED),
        ((b"abc", 0.05, Act.RESET), b"abc", Ending.RESET),
        ((Repeat(b"x", 3), b"y"), b"xxxy", Ending.OPEN),
        ((lambda _head, body: body[:10], Act.HANG), RIGHT[:10], Ending.OPEN),
    ],
)
async def test_it_plays_a_script(origin, steps, data, ending):
    origin.set_script("o000001", Script(steps))
    assert await ask(origin, GET) == (data, ending)
    origin.set_script("o000001", None)
    assert (await ask(origin, GET)).data.endswith(RIGHT)


async def test_a_script_may_be_played_once(origin):
    origin.set_script("o000001", Script((b"once", Act.CLOSE), times=1))
    assert (await ask(origin, GET)).data == b"once"
    assert (await ask(origin, GET)).data.endswith(RIGHT)


@pytest.mark.parametrize(
    ("request_bytes", "text"),
    [
        (GET.replace(b"o000001-0", b"o000001-0-smuggled"), "a smuggled request"),
        (GET.replace(b"Host: a", b"Host: a\r\nx-amz-meta-stray: b"), "a field that belongs to no request"),
        (GET.replace(b"Host: a", b"Host : a"), "a field that is none"),
        (GET.replace(b"Host: a", b"Host: a\r\nHost: a"), "not one Host"),
        (PUT.replace(b"Host", b"Content-Length: 5\r\nHost"), "two framings"),
        (GET.replace(b"1.1", b"1.0"), "a request line that is not HTTP/1.1"),
        (GET + b"junk", "bytes of the proxy that are no head"),
    ],
)
async def test_a_request_that_no_proxy_may_send_is_an_alarm(origin, request_bytes, text):
    wire = await Wire.open(Address("127.0.0.1", origin.port))
    await wire.send(request_bytes)
    await wire.receive(0.2)
    wire.close()
    async with asyncio.timeout(5):
        while not origin.alarms:
            await asyncio.sleep(0.01)
    assert text in origin.alarms[0].what


async def test_a_gate_counts_the_requests_that_wait_at_once(origin):
    gate = origin.gate("o000001", 0.3)
    answers = await asyncio.gather(*(ask(origin, GET, silent_s=2.0) for _ in range(7)))
    assert all(answer.data.endswith(RIGHT) for answer in answers)
    assert gate.most == 7
    await ask(origin, GET)
    assert gate.most == 7


def test_the_tag_is_made_of_the_md5_of_the_bytes():
    assert tag_of(b"hello") == '"5d41402abc4b2a76b9719d911017c592-1"'
