"""Ceph RGW as a reference of the bench. A missing RGW is reported, all started programs end, and the clients
get the credentials.
"""

import importlib.util
import os
from contextlib import closing, nullcontext

import pytest

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.sigv4 import Credentials
from shadeproxy_bench import rgw, run
from shadeproxy_bench.clients import Clients, Job
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Scale
from shadeproxy_bench.registry import SUITES
from shadeproxy_bench.requests import CLIENT
from shadeproxy_bench.server import Served, proxy
from shadeproxy_bench.suites import matrix
from shadeproxy_bench.suites.matrix import Arena
from shadeproxy_bench.suites.misses import read_pieces

BEHIND = "Ceph RGW, 0 ms"
ACCOUNT = Credentials("ACCOUNT", "secret-of-the-account")
INFO = "main_access_key=M\nmain_secret_key=S\nalt_access_key=A\nalt_secret_key=T"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Return a function that writes a start script. The script runs the shell commands ``start``. It records
    the first argument of each call.
    """
    monkeypatch.setattr(rgw, "PROGRAMS", ())
    monkeypatch.setattr(rgw, "SCRIPT", tmp_path / "start.sh")
    calls = tmp_path / "calls"

    def write(start):
        lines = [f"echo $1 >> {calls}", '[ "$1" = start ] || exit 0', 'mkdir -p "$2/run"', start]
        rgw.SCRIPT.write_text("\n".join(lines))
        return lambda: calls.read_text().split()

    return write


@pytest.fixture
def arena():
    opened = Arena()
    yield opened
    opened.close()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(matrix, "_SIZES", {"4 KB": (4000, 3), "64 MB": (100_000, 2)})


def test_programs_that_are_not_installed_are_named(monkeypatch, tmp_path):
    (tmp_path / "ceph").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = [run.measure("matrix", one) for one in SUITES["matrix"](Scale()) if BEHIND in one.name]
    assert len(rows) == 32
    assert {row.status for row in rows} == {"reference missing"}
    assert rows[0].note.startswith("radosgw, ceph-mon, ceph-osd, monmaptool, curl not installed; on Debian")


def test_without_a_checkout_there_is_no_start_script(monkeypatch, tmp_path, plan):
    monkeypatch.setattr(rgw, "SCRIPT", tmp_path / "none.sh")
    row = run.measure("matrix", next(one for one in SUITES["matrix"](Scale()) if BEHIND in one.name))
    assert row.status == "reference missing"
    assert "only a checkout has" in row.note


def test_a_quick_run_leaves_it_out():
    assert not [one for one in SUITES["matrix"](Scale(quick=True)) if BEHIND in one.name]


def test_a_start_that_fails_is_explained_tried_once_and_wiped(script, arena):
    calls = script("echo no room; exit 3")
    for _ in range(2):
        with pytest.raises(ShadeProxyError, match=r"Ceph RGW ended with status 3(.|\n)*no room"):
            arena.sides(BEHIND)
    assert calls() == ["start", "wipe"]


def test_what_was_interrupted_while_it_started_is_wiped(script, tmp_path, monkeypatch):
    calls = script("sleep 60")
    monkeypatch.setattr(rgw, "_START_S", 0.3)
    with pytest.raises(BenchError, match="not ready"), rgw.rgw(tmp_path):
        raise AssertionError
    assert calls() == ["start", "wipe"]


def test_a_gateway_that_was_used_is_wiped(script, tmp_path):
    calls = script(f'echo {os.getpid()} > "$2/run/rgw.pid"; echo "{INFO}"')
    with pytest.raises(KeyboardInterrupt), rgw.rgw(tmp_path) as gateway:
        assert gateway.main == Credentials("M", "S")
        assert gateway.alt == Credentials("A", "T")
        assert gateway.served.pid == os.getpid()
        assert calls() == ["start"]
        raise KeyboardInterrupt
    assert calls() == ["start", "wipe"]


def test_a_refused_object_fails_the_cells(make_origin):
    gateway = rgw.Gateway(make_origin(seed=1), ACCOUNT, ACCOUNT)
    with pytest.raises(BenchError, match=r"^Ceph RGW answers PUT /bench/.* with 4") as refused:
        rgw.put_objects(gateway, [Piece(1000, 0)])
    assert ACCOUNT.secret_key not in str(refused.value)
    gone = rgw.Gateway(Served("gone", "127.0.0.1", 1, 0), ACCOUNT, ACCOUNT)
    with pytest.raises(BenchError, match="took no object: ConnectionRefusedError"):
        rgw.put_objects(gone, [])


@pytest.fixture
def signed(make_origin, stack, tmp_path):
    """Run a server that accepts only the account ``ACCOUNT``."""
    keeper = proxy(
        tmp_path, make_origin(), ram_bytes=8 * 1024**2, signed=True, clients=[ACCOUNT], name="keeper"
    )
    return stack.enter_context(keeper)


def test_a_proxy_signs_with_the_upstream_s_credentials(signed, stack, tmp_path):
    ours = stack.enter_context(
        proxy(tmp_path, signed, ram_bytes=8 * 1024**2, clients=[ACCOUNT], upstream=ACCOUNT)
    )
    pieces = [Piece(1000, number) for number in range(4)]
    assert read_pieces(ours, pieces, connections=2).sources == {"origin": 4}
    other = stack.enter_context(proxy(tmp_path, signed, ram_bytes=8 * 1024**2, name="stranger"))
    with pytest.raises(BenchError, match="403"):
        read_pieces(other, pieces, connections=2)


@pytest.mark.parametrize("client", ["boto3", "obstore"])
def test_clients_sign_with_the_credentials_of_the_job(stack, signed, client):
    if importlib.util.find_spec(client) is None:
        pytest.skip(f"{client} is not installed")
    clients = stack.enter_context(closing(Clients()))
    refused = clients.run(Job(client, signed.url, 4000, 2, 2, 0.1, credentials=CLIENT)).error
    assert "InvalidAccessKeyId" in refused
    done = clients.run(Job(client, signed.url, 4000, 2, 2, 0.1, credentials=ACCOUNT))
    assert done.error == ""
    assert done.bytes > 0


def test_both_sides_of_a_cell_get_the_account(signed, small, arena, monkeypatch):
    """Both sides of a cell sign with the account. The server ``signed`` stands for the gateway. It accepts
    only this account, and its objects cannot be written.
    """
    monkeypatch.setattr(matrix, "rgw", lambda *_, **__: nullcontext(rgw.Gateway(signed, ACCOUNT, CLIENT)))
    put = []
    monkeypatch.setattr(matrix, "put_objects", lambda _gateway, pieces: put.extend(pieces))
    jobs = []
    monkeypatch.setattr(arena, "_run", lambda job: jobs.append(job) or matrix.Done(1, 1.0))
    matrix.cell(arena, "boto3", "4 KB", 2, behind=BEHIND, seconds=0.1)
    ours = arena.sides(BEHIND).ours
    assert put == [Piece(4000, number) for number in range(3)] + [
        Piece(100_000, number) for number in range(2)
    ]
    assert {(job.endpoint, job.credentials) for job in jobs} == {(signed.url, ACCOUNT), (ours.url, ACCOUNT)}
    assert set(read_pieces(ours, put, connections=2).sources) == {"ram"}
