"""The comparison of CPU time for hits: it shows which side is slower, and gives no number if a byte
is wrong.
"""

import shutil
from dataclasses import replace

import pytest

from shadeproxy_bench import run
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.load import PATH, ReaderLoad, WrkLoad
from shadeproxy_bench.nginx import PROXY_CACHE, VARIANTS, nginx
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.requests import plain_requests
from shadeproxy_bench.server import proxy
from shadeproxy_bench.suites import hits
from shadeproxy_bench.suites.hits import compare

has_nginx = pytest.mark.skipif(shutil.which("nginx", path=PATH) is None, reason="nginx is not installed")
has_wrk = pytest.mark.skipif(shutil.which("wrk", path=PATH) is None, reason="wrk is not installed")


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr(hits, "_SETTLE_S", 0.0)


def tiny(ours, references, pieces, *, sources=("",), load=None, **more):
    return compare(
        ours, references, pieces, sources=sources, load=load or ReaderLoad(), rounds=2, seconds=0.2, **more
    )


def test_a_server_that_works_more_has_the_worse_ratio(make_origin, make_fake, pieces, plan):
    fast, slow = make_origin(), make_fake("slow")
    ours_slow = run.measure("hits", plan(tiny(slow, [fast], pieces)))
    assert ours_slow.ratio < 0.5
    assert ours_slow.met is False
    ours_fast = run.measure("hits", plan(tiny(fast, [slow], pieces)))
    assert ours_fast.ratio > 2
    assert ours_fast.met is True


def test_the_cheapest_reference_is_chosen(make_origin, make_fake, pieces):
    ours, slow, fast = make_origin("ours"), make_fake("slow"), make_origin("fast")
    found = tiny(ours, [slow, fast], pieces)
    assert found.note.startswith("reference: fast; load: a Python client")
    assert "tried: slow " in found.note


@pytest.mark.parametrize("wrong_side", ["ours", "reference"])
def test_wrong_bytes_on_either_side_fail_the_row(make_origin, pieces, plan, wrong_side):
    right, wrong = make_origin("right"), make_origin("wrong", seed=1)
    sides = (wrong, [right]) if wrong_side == "ours" else (right, [wrong])
    row = run.measure("hits", replace(plan(None), measure=lambda: tiny(*sides, pieces)))
    assert (row.status, row.met, row.ours) == ("failed", False, None)
    assert row.note.endswith("wrong bytes")


def test_hits_from_elsewhere_fail_the_row(make_origin, make_fake, pieces):
    with pytest.raises(BenchError, match=r"proxy.* is not warm after 10 passes: wanted disk, got {'ram'}"):
        tiny(make_fake("ram")._replace(name="proxy"), [make_origin()], pieces, sources=("disk",))


def test_the_real_proxy_hits_in_the_tier_that_was_meant(make_origin, stack, tmp_path, pieces):
    source = make_origin()
    ram = stack.enter_context(proxy(tmp_path, source, ram_bytes=64 * 1024**2, signed=True, name="ram"))
    assert tiny(ram, [source], pieces, sources=("ram",), signed=True, distinct=200).ours > 0
    big = [Piece(100_000, number) for number in range(20)]
    disk = stack.enter_context(
        proxy(tmp_path, source, ram_bytes=64 * 1024, disk_bytes=64 * 1024**2, name="disk")
    )
    assert tiny(disk, [source], big, sources=("disk",)).ours > 0


@has_nginx
def test_every_variant_of_nginx_serves_the_right_bytes(make_origin, stack, tmp_path):
    asked = [Piece(4000, 1), Piece(100_000, 2), Piece(2_000_000, 3, 500, 1_000_000)]
    variants = stack.enter_context(nginx(tmp_path, asked))
    assert [one.name for one in variants] == [*VARIANTS, PROXY_CACHE]
    assert "reference: " in tiny(make_origin(), variants, asked).note


def test_without_nginx_the_row_says_so(monkeypatch, tmp_path, pieces):
    monkeypatch.setattr("shadeproxy_bench.nginx.PATH", str(tmp_path))
    (first, *_) = hits.hits(Scale(quick=True))
    row = run.measure("hits", first)
    assert (row.status, row.met, row.ours, row.ratio) == ("reference missing", False, None, None)
    assert row.note == "nginx is not installed; on Debian and Ubuntu: apt-get install nginx-light"


@has_wrk
def test_wrk_counts_and_sees_errors(make_origin, make_fake, pieces):
    load = WrkLoad(shutil.which("wrk", path=PATH))
    fine, refusing = make_origin(), make_fake("refusing")
    requests = list(zip(pieces, plain_requests(pieces, fine.authority), strict=True))
    assert load.run(fine, requests, connections=2, seconds=1).total > 2
    with pytest.raises(BenchError, match=r"wrk saw .* errors"):
        load.run(refusing, requests, connections=2, seconds=1)
