"""The row about uploads: the origin accepts only the right bytes, directly and through the proxy."""

import pytest

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.server import proxy
from shadeproxy_bench.suites.misses import read_pieces
from shadeproxy_bench.suites.uploads import forwarded, upload

PIECES = [Piece(300_000, number) for number in range(5)]


@pytest.fixture
def servers(make_origin, stack, tmp_path):
    source = make_origin()
    return stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * 1024**2)), source


def test_uploads_are_forwarded_and_timed(servers):
    found = forwarded(*servers, objects=4, rounds=2, connections=2)
    assert found.ours > 0
    assert found.reference > 0


def test_wrong_bytes_are_refused_on_either_way(servers):
    for server in servers:
        with pytest.raises(BenchError, match=r"PUT /bench/300000/\d+.bin was answered 400$"):
            upload(server, PIECES, connections=2, seed=1)


def test_the_origin_answers_reads_after_an_upload(servers):
    _, source = servers
    upload(source, PIECES, connections=2)
    assert read_pieces(source, PIECES, connections=2).requests == 5


def test_a_server_that_hangs_up_fails_the_row(make_fake):
    with pytest.raises(BenchError, match=r"^closing broke off: "):
        upload(make_fake("closing"), PIECES, connections=1)
