"""Rows over TLS make the same checks as rows without TLS."""

import shutil
import socket
import ssl

import pytest

from shadeproxy_bench import run
from shadeproxy_bench.certificate import make_certificate
from shadeproxy_bench.faults import BenchError, ReferenceMissing
from shadeproxy_bench.load import PATH, ReaderLoad, WrkLoad
from shadeproxy_bench.nginx import VARIANTS, nginx
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.registry import SUITES
from shadeproxy_bench.requests import plain_requests
from shadeproxy_bench.server import proxy
from shadeproxy_bench.suites.hits import compare
from shadeproxy_bench.suites.misses import read_misses, read_pieces
from shadeproxy_bench.suites.tls import encrypted_misses

has_nginx = pytest.mark.skipif(shutil.which("nginx", path=PATH) is None, reason="nginx is not installed")
MIB = 1024**2


@pytest.fixture
def encrypted(make_origin, certificate):
    return make_origin("https", certificate=certificate)


def test_bytes_are_compared_over_tls_too(make_origin, certificate, encrypted, pieces):
    """Bytes are compared over TLS too. The bodies are longer and shorter than a TLS record, and many
    connections are used.
    """
    assert encrypted.url.startswith("https://")
    assert read_pieces(encrypted, [*pieces, Piece(300_000, 1)], connections=3).requests == 41
    wrong = make_origin("wrong", certificate=certificate, seed=1)
    with pytest.raises(BenchError, match="wrong bytes"):
        read_pieces(wrong, pieces, connections=3)


def test_a_certificate_that_is_not_trusted_ends_the_row(encrypted, pieces, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_certificate(tmp_path / "other")
    with pytest.raises(BenchError, match=r"broke off: .*certificate verify failed"):
        read_pieces(encrypted._replace(trusted=str(other.cert)), pieces, connections=1)


def test_without_openssl_the_rows_say_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReferenceMissing, match=r"^openssl is not installed; .*: apt-get install openssl$"):
        make_certificate(tmp_path)


def test_hits_of_an_https_listener_are_compared(make_origin, stack, certificate, tmp_path, pieces):
    source = make_origin()
    ours = stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * MIB, certificate=certificate))
    right = make_origin("right", certificate=certificate)
    wrong = make_origin("wrong", certificate=certificate, seed=1)

    def hits(reference):
        return compare(ours, [reference], pieces, sources={"ram"}, load=ReaderLoad(), rounds=1, seconds=0.2)

    assert hits(right).ours >= 0
    with pytest.raises(BenchError, match="wrong bytes"):
        hits(wrong)


@has_nginx
def test_nginx_serves_the_right_bytes_over_tls(stack, tmp_path, certificate):
    asked = [Piece(4000, 1), Piece(100_000, 2)]
    variants = stack.enter_context(nginx(tmp_path, asked, certificate=certificate))
    assert [one.name for one in variants] == list(VARIANTS)
    for one in variants:
        assert read_pieces(one, asked, connections=2).requests == 2


@has_nginx
def test_proxy_and_nginx_encrypt_alike(make_origin, stack, tmp_path, certificate):
    ours = stack.enter_context(proxy(tmp_path, make_origin(), ram_bytes=64 * MIB, certificate=certificate))
    reference, *_ = stack.enter_context(nginx(tmp_path, [Piece(4000, 1)], certificate=certificate))
    assert cipher(ours) == cipher(reference)
    assert cipher(ours)[1] == "TLSv1.3"


def cipher(server):
    context = ssl.create_default_context(cafile=server.trusted)
    with (
        socket.create_connection(server.address, timeout=20) as link,
        context.wrap_socket(link, server_hostname=server.host) as encrypted,
    ):
        return encrypted.cipher()


@pytest.mark.skipif(shutil.which("wrk", path=PATH) is None, reason="wrk is not installed")
def test_wrk_speaks_tls(encrypted, pieces):
    requests = list(zip(pieces, plain_requests(pieces, encrypted.authority), strict=True))
    load = WrkLoad(shutil.which("wrk", path=PATH))
    assert load.run(encrypted, requests, connections=2, seconds=1).total > 2


def test_misses_over_https_and_http_are_compared(make_origin, stack, encrypted, tmp_path):
    plain = stack.enter_context(proxy(tmp_path, make_origin(), ram_bytes=64 * MIB, name="plain"))
    ours = stack.enter_context(proxy(tmp_path, encrypted, ram_bytes=64 * MIB, name="ours"))
    cpu, more = encrypted_misses(ours, plain, objects=6, rounds=2, connections=2)
    assert cpu.ours >= 0
    assert more.note.startswith("medians: ")
    with pytest.raises(BenchError, match="not all of 6 reads were misses"):
        encrypted_misses(ours, plain, objects=6, rounds=2, connections=2)


def test_wrong_bytes_of_an_https_origin_fail_the_row(make_origin, stack, certificate, tmp_path):
    wrong = make_origin("wrong", certificate=certificate, seed=1)
    ours = stack.enter_context(proxy(tmp_path, wrong, ram_bytes=64 * MIB))
    with pytest.raises(BenchError, match="wrong bytes"):
        read_misses(ours, [Piece(100_000, 1)], connections=1)


def test_without_nginx_the_rows_of_hits_say_so(monkeypatch, tmp_path):
    monkeypatch.setattr("shadeproxy_bench.nginx.PATH", str(tmp_path))
    rows = [run.measure("tls", planned) for planned in list(SUITES["tls"](Scale(quick=True)))[:2]]
    assert {row.status for row in rows} == {"reference missing"}
