"""The client by which the bench checks all bodies. It accepts only the right bytes."""

import itertools

import pytest

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import Piece, body_of
from shadeproxy_bench.reader import read
from shadeproxy_bench.requests import plain_requests, signed_requests


def exchanges(server, pieces):
    return [
        (request, piece.body())
        for request, piece in zip(plain_requests(pieces, server.authority), pieces, strict=True)
    ]


def test_objects_differ_and_are_the_same_everywhere():
    bodies = {bytes(body_of(100, number)) for number in range(1000)}
    assert len(bodies) == 1000
    assert bytes(body_of(100, 5)) == bytes(body_of(1000, 5)[:100])
    assert bytes(body_of(100, 5, seed=1)) != bytes(body_of(100, 5))
    assert bytes(Piece(1000, 3, 10, 20).body()) == bytes(body_of(1000, 3)[10:30])
    assert len(body_of(40_000_000, 7)) == 40_000_000


def test_whole_objects_and_ranges_are_read_over_every_connection(make_origin, pieces):
    server = make_origin()
    asked = [*pieces, Piece(50_000, 1, 100, 20_000), Piece(1_000_000, 2)]
    reading = read(server.address, exchanges(server, asked), connections=7)
    assert reading.requests == len(asked)
    assert reading.bytes == 40 * 1000 + 20_000 + 1_000_000
    assert reading.sources == {"": len(asked)}


def test_reading_ends_with_the_time(make_origin, pieces):
    server = make_origin()
    endless = itertools.cycle(exchanges(server, pieces))
    assert read(server.address, endless, connections=2, seconds=0.05).requests >= 2


def test_the_source_of_a_hit_is_counted(make_fake, pieces):
    server = make_fake("ram")
    assert read(server.address, exchanges(server, pieces), connections=3).sources == {"ram": 40}


def test_who_asks_is_told_of_each_answer(make_fake, pieces):
    server, told = make_fake("ram"), []
    read(server.address, exchanges(server, pieces), connections=1, told=told.append)
    assert told == ["ram"] * 40


def test_wrong_bytes_are_named(make_origin, pieces):
    server = make_origin(seed=1)
    with pytest.raises(BenchError, match=r"^GET /bench/1000/00000000.bin HTTP/1.1: wrong bytes$"):
        read(server.address, exchanges(server, pieces), connections=1)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("closing", "the server closed the connection"),
        ("endless", "more bytes came than were announced"),
        ("refusing", "it answered 'HTTP/1.1 503 Slow Down'"),
    ],
)
def test_a_broken_answer_is_named(make_fake, pieces, fault, said):
    server = make_fake(fault)
    with pytest.raises(BenchError, match=said):
        read(server.address, exchanges(server, pieces), connections=1)


def test_a_body_of_another_length_is_named(make_origin):
    server = make_origin()
    (request,) = plain_requests([Piece(1000, 1)], server.authority)
    with pytest.raises(BenchError, match="Content-Length 1000, not 999"):
        read(server.address, [(request, body_of(999, 1))], connections=1)


def test_nobody_there_is_a_fault_of_the_row():
    with pytest.raises(BenchError, match=r"127.0.0.1:9 broke off"):
        read(("127.0.0.1", 9), [], connections=1)


def test_no_two_signed_requests_are_alike(pieces):
    signed = [request for _, request in signed_requests(pieces, "127.0.0.1:1", distinct=200)]
    assert len(set(signed)) == 200
    assert all(b"\r\nAuthorization: AWS4-HMAC-SHA256 " in request for request in signed)
