"""``shadeproxy check``: every row that fails says what to change."""

import os
import platform
import socket
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from shadeproxy.app.cluster_agreement import agreed, origin_digest
from shadeproxy.app.origins import origin_name
from shadeproxy.cluster.events import WIRE
from shadeproxy.cluster.log import Seat, ViewRecord
from shadeproxy.cluster.signed import Seals
from shadeproxy.cluster.view import NodeFacts, seal_facts
from shadeproxy.config import Settings
from shadeproxy.core.errors import (
    ConfigError,
    CredentialsUnresolved,
    NoCredentials,
    NotS3,
    OriginAnswer,
    OriginUnavailable,
)
from shadeproxy.core.memory_limit import MemoryLimit
from shadeproxy.core.types import ListEntry, ListPage
from shadeproxy.tiers.version import write_version
from tests.support.cli_origin import FakeOrigin
from tests.support.cluster_log import FakeLog, Server


def failures(result):
    """Return the failed rows, each as ("name: detail", "what to change")."""
    lines = result.stdout.splitlines()
    return [
        (line.removeprefix("failed  "), lines[number + 1].strip().removeprefix("change: "))
        for number, line in enumerate(lines)
        if line.startswith("failed")
    ]


def test_all_is_well_and_nothing_was_created(check, tmp_path):
    result = check.run("--bucket", "train")
    assert result.exit_code == 0, result.stdout
    names = [line.removeprefix("ok      ").partition(":")[0] for line in result.stdout.splitlines()]
    assert names == [
        "configuration",
        "python",
        "lane",
        "secrets",
        "bucket names",
        "s3.workers",
        "memory",
        "descriptors",
        "read histories",
        "cache.ram.path",
        "cache.disk.path",
        "state.path",
        "s3.listen",
        "control.listen",
        "origin",
        "bucket train",
    ]
    assert "origin: 2 buckets at http://origin" in result.stdout
    assert check.origin.closed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("compiled", "detail"),
    [
        (True, "compiled\n"),
        (False, "interpreted; hits cost less CPU once a C compiler and the Python headers"),
    ],
)
def test_it_says_whether_the_lane_is_compiled(check, monkeypatch, compiled, detail):
    monkeypatch.setattr("shadeproxy.api.s3.COMPILED", compiled)
    assert f"ok      lane: {detail}" in check.run().stdout


@pytest.mark.parametrize(
    ("optimised", "detail"),
    [
        (True, " (optimised build)\n"),
        (False, " (built without --enable-optimizations); misses cost about a sixth more CPU than"),
        (None, "\n"),
    ],
)
def test_it_says_how_python_was_built_where_that_is_certain(check, monkeypatch, optimised, detail):
    monkeypatch.setattr("shadeproxy.core.interpreter.is_optimised", lambda: optimised)
    assert f"ok      python: {platform.python_version()}{detail}" in check.run().stdout


@pytest.mark.parametrize(
    ("error", "detail", "change"),
    [
        (
            OriginUnavailable("connection refused"),
            "http://store: connection refused",
            "check origin.endpoint, the network, and",
        ),
        (
            OriginAnswer(403, "SignatureDoesNotMatch"),
            "http://store: 403 SignatureDoesNotMatch",
            "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the AWS",
        ),
        (
            OriginAnswer(403, "InvalidAccessKeyId"),
            "http://store: 403 InvalidAccessKeyId",
            "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the AWS",
        ),
        (
            OriginAnswer(403, "AccessDenied"),
            "http://store: 403 AccessDenied",
            "allow these credentials to list, or name others (or some at all)",
        ),
        (
            OriginAnswer(301, "PermanentRedirect"),
            "http://store: 301 PermanentRedirect",
            "check origin.endpoint and origin.region",
        ),
        (
            NotS3("http://store is no S3 server: it answers", hint="set origin.endpoint to another"),
            "http://store is no S3 server: it answers",
            "set origin.endpoint to another",
        ),
        (
            CredentialsUnresolved("the config profile (nope) could not be found"),
            "http://store: the config profile (nope) could not be found",
            "correct the profile, file, process or role",
        ),
        (ConfigError("no credentials found"), "no credentials found", "correct the setting"),
    ],
)
def test_origin_failures(check, error, detail, change):
    check.origin = FakeOrigin(probe=error)
    result = check.run("--set", "origin.endpoint=http://store")
    assert result.exit_code == 1
    ((found, advice),) = failures(result)
    assert found == f"origin: {detail}"
    assert advice.startswith(change)
    assert result.stderr == "error: 1 of the checks failed\n"
    assert check.origin.closed


def test_a_proxy_without_keys_is_told_to_set_them(check):
    check.origin = FakeOrigin(probe=NoCredentials("none were found"))
    ((found, advice),) = failures(check.run("--set", "origin.endpoint=http://store"))
    assert found == "origin: http://store: 403 AccessDenied: none were found"
    assert advice == NoCredentials.hint


def test_an_endpoint_that_was_not_set_is_named_as_what_it_means(check):
    check.origin = FakeOrigin(probe=OriginAnswer(403, "AccessDenied", "no origin credentials were found"))
    ((found, advice),) = failures(check.run())
    assert found == "origin: AWS S3: 403 AccessDenied: no origin credentials were found"
    assert advice.endswith("; origin.endpoint is not set, which means AWS S3: set it where that is not meant")


def test_an_error_that_names_the_endpoint_names_it_once(check):
    check.origin = FakeOrigin(probe=OriginUnavailable("the origin http://store cannot be reached: refused"))
    ((found, _),) = failures(check.run("--set", "origin.endpoint=http://store"))
    assert found == "origin: the origin http://store cannot be reached: refused"


def test_bucket(check):
    check.origin = FakeOrigin(listing=OriginAnswer(404, "NoSuchBucket"))
    expected = (
        "bucket b: http://store: 404 NoSuchBucket",
        "create the bucket at the origin, or name another",
    )
    assert failures(check.run("--bucket", "b", "--set", "origin.endpoint=http://store")) == [expected]
    check.origin = FakeOrigin(listing=ListPage((ListEntry("k", 1, '"e"'),), truncated=True))
    assert "bucket b: can be listed" in check.run("--bucket", "b").stdout


def test_missing_secret(check):
    result = check.run("--set", 'auth.clients=[{access_key="a", secret_env="NOT_SET"}]')
    text = "secrets: auth.clients a: the environment variable NOT_SET is not set; set it to the secret"
    assert failures(result) == [(text, "make the secret available")]


def test_a_missing_secret_for_the_collector(check):
    result = check.run("--set", "telemetry.otel.headers=env:NOT_SET")
    text = (
        "secrets: telemetry.otel.headers: the environment variable NOT_SET is not set; set it to the secret"
    )
    assert failures(result) == [(text, "make the secret available")]


@pytest.mark.parametrize("installed", [True, False])
def test_otel_spans_need_an_extra(check, monkeypatch, installed):
    module = SimpleNamespace() if installed else None
    monkeypatch.setitem(sys.modules, "shadeproxy.telemetry.otel_sdk", module)
    result = check.run("--set", "telemetry.otel.enabled=true")
    missing = [
        (
            "telemetry.otel: needs packages that are missing",
            "pip install 'shadeproxy[otel]', or leave telemetry.otel.enabled out",
        )
    ]
    assert failures(result) == ([] if installed else missing)
    assert ("telemetry.otel: the SDK" in result.stdout) is installed


def test_taken_ports(check, taken_port):
    result = check.run("--set", f"s3.listen=127.0.0.1:{taken_port}")
    assert failures(result) == [
        (
            f"s3.listen: 127.0.0.1:{taken_port} cannot be bound: Address already in use",
            "stop what listens there (another shadeproxy?), or set s3.listen",
        )
    ]


def test_directory_that_is_none(check, tmp_path):
    (tmp_path / "file").write_text("")
    result = check.run("--set", f"state.path={tmp_path / 'file'}")
    expected = f"state.path: {tmp_path / 'file'} cannot be written: Not a directory"
    assert failures(result) == [(expected, "make it writable for this user, or set state.path")]


@pytest.fixture
def file_system(monkeypatch):
    """Return a function ``file_system(total, free)``. It sets size and free room of every file system, in
    MiB.
    """
    real = os.statvfs

    def file_system(total: int, free: int, inodes: int = 100) -> None:
        def statvfs(path):
            found = real(path)
            values = {
                "f_frsize": 1024**2,
                "f_blocks": total,
                "f_bavail": free,
                "f_favail": inodes,
                "f_files": 100,
            }
            names = ("f_frsize", "f_blocks", "f_bavail", "f_favail", "f_files")
            return SimpleNamespace(**{name: values.get(name, getattr(found, name)) for name in names})

        monkeypatch.setattr(os, "statvfs", statvfs)

    return file_system


def warnings(result):
    lines = result.stdout.splitlines()
    return [
        (line.removeprefix("warning "), lines[number + 1].strip().removeprefix("change: "))
        for number, line in enumerate(lines)
        if line.startswith("warning")
    ]


def test_a_capacity_that_the_file_system_can_never_hold(check, file_system, tmp_path):
    file_system(total=20, free=10)
    result = check.run("--set", "cache.disk.capacity=900 TiB", "--set", "cache.disk.min_free=2 MiB")
    ((found, advice),) = failures(result)
    assert found.startswith(
        "cache.disk.path: cache.disk.capacity is 900.0 TiB and cache.disk.min_free 2.0 MiB,"
    )
    assert found.endswith(" has 20.0 MiB in all")
    assert advice.startswith(
        'set cache.disk.capacity to at most "18 MiB", choose another cache.disk.path, or'
    )


def test_too_little_room_now_is_a_warning_as_serve_starts_with_it(check, file_system):
    file_system(total=20, free=5)
    result = check.run("--set", "cache.disk.capacity=10 MiB", "--set", "cache.disk.min_free=2 MiB")
    ((found, advice),) = warnings(result)
    assert result.exit_code == 0
    assert found.endswith(
        "has room for 3.0 MiB, not for 10.0 MiB and cache.disk.min_free 2.0 MiB: the tier holds less"
    )
    assert advice == (
        'free space there, set cache.disk.capacity to at most "3 MiB", or choose another cache.disk.path'
    )


def test_a_new_cache_needs_room_for_its_first_files(check, file_system, tmp_path):
    file_system(total=20, free=0)
    ((found, advice),) = failures(check.run("--set", "cache.disk.capacity=0"))
    assert found.endswith("ram has no cache yet, and 0 B free: a start needs room for its first files")
    assert advice == "free space there, or choose another cache.ram.path"
    (tmp_path / "ram").mkdir()
    write_version(tmp_path / "ram", origin_name(Settings()), 4 * 1024**2)
    result = check.run("--set", "cache.disk.capacity=0", "--set", "cache.ram.capacity=3 MiB")
    assert not failures(result)
    ((_, advice),) = warnings(result)
    assert advice == "free space there, or choose another cache.ram.path"


def test_a_capacity_of_nothing_is_no_advice(check, file_system):
    file_system(total=20, free=10)
    result = check.run("--set", "cache.disk.capacity=8 MiB", "--set", "cache.disk.min_free=1 GiB")
    ((_, advice),) = failures(result)
    assert advice.startswith("lower cache.disk.min_free and cache.disk.capacity, choose another")


def test_a_cache_that_is_there_counts_as_room(check, file_system, tmp_path):
    (tmp_path / "ram").mkdir()
    (tmp_path / "ram" / "lock").touch()
    (tmp_path / "ram" / "000001.seg").write_bytes(bytes(2 * 1024**2))
    file_system(total=20, free=1)
    assert not warnings(check.run("--set", "cache.ram.capacity=3 MiB"))
    assert warnings(check.run("--set", "cache.ram.capacity=4 MiB"))


def test_a_file_system_without_inodes(check, file_system):
    file_system(total=20, free=10, inodes=0)
    found, advice = warnings(check.run())[0]
    assert found.endswith("has no free inodes: the tier makes no more segment files")
    assert advice == "delete files there, or choose another cache.ram.path"


def test_a_memory_limit_that_hints_could_exceed(check, monkeypatch):
    limit = MemoryLimit(4 * 1024**3, "/sys/fs/cgroup/memory.max")
    monkeypatch.setattr("shadeproxy.core.memory_limit.memory_limit", lambda: limit)
    ((found, advice),) = warnings(check.run())
    assert "control.hint_memory is 4.0 GiB, but tiers, reads and processes leave" in found
    assert advice.startswith("set control.hint_memory to at most")


def test_a_memory_limit_below_the_tiers(check, monkeypatch):
    limit = MemoryLimit(100 * 1024**2, "/sys/fs/cgroup/memory.max")
    monkeypatch.setattr("shadeproxy.core.memory_limit.memory_limit", lambda: limit)
    ((found, advice),) = failures(check.run())
    assert "but /sys/fs/cgroup/memory.max allows 100.0 MiB, and the kernel would kill the proxy" in found
    assert advice == "lower cache.inflight or s3.workers, or raise the limit"


def test_disk_switched_off_is_not_checked(check):
    assert "cache.disk" not in check.run("--set", "cache.disk.capacity=0").stdout


@pytest.mark.parametrize(
    ("workers", "detail"),
    [
        ("1", "one process serves"),
        ("3", "3 processes serve"),
        ("auto", "6 processes serve, chosen for 12 cores"),
    ],
)
def test_it_says_how_many_processes_serve(check, monkeypatch, workers, detail):
    for module in ("shadeproxy.config.sections", "shadeproxy.core.cores"):
        monkeypatch.setattr(f"{module}.available_cores", lambda: 12)
    assert f"ok      s3.workers: {detail}\n" in check.run("--set", f"s3.workers={workers}").stdout


def test_more_workers_than_cores_are_a_warning(check, monkeypatch):
    monkeypatch.setattr("shadeproxy.core.cores.available_cores", lambda: 2)
    result = check.run("--set", "s3.workers=3")
    assert warnings(result) == [
        ("s3.workers: 3 processes share 2 cores", 'set s3.workers to at most 2, or to "auto"')
    ]
    assert result.exit_code == 0


def test_workers_on_an_architecture_that_reorders_stores_are_refused(check, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    result = check.run("--set", "s3.workers=2")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: s3.workers = 2 does not go with this machine, aarch64: only x86-64 shows stores to other"
        ' cores in their order; write s3.workers = 1 or "auto"\n'
    )


def test_the_shared_memory_of_a_container_is_too_small(check, file_system):
    file_system(total=64, free=64)
    ((found, advice),) = failures(check.run("--set", "cache.ram.capacity=1 GiB"))
    assert found.startswith("cache.ram.path: cache.ram.capacity is 1.0 GiB, but the file system of ")
    assert found.endswith(" has 64.0 MiB in all")
    assert advice == (
        'set cache.ram.capacity to at most "64 MiB", choose another cache.ram.path, or enlarge it'
        " (tmpfs: mount -o remount,size=..., docker --shm-size)"
    )


@pytest.mark.parametrize(
    ("limit", "row"),
    [
        (20_000, "ok      descriptors: 20000 files and connections may be open\n"),
        (600, "warning descriptors: the proxy may open 600 files and connections, but its tiers and"),
        (70, "failed  descriptors: the proxy may open 70 files and connections, and needs more than"),
    ],
)
def test_the_limit_of_descriptors(check, monkeypatch, limit, row):
    monkeypatch.setattr("resource.getrlimit", lambda _which: (limit, limit))
    assert row in check.run().stdout


def test_tls_files(check, tmp_path):
    result = check.run("--set", "s3.tls.cert=/none.pem", "--set", "s3.tls.key=/none.key")
    ((found, advice),) = failures(result)
    assert found.startswith("s3.tls: /none.pem, /none.key: [Errno 2] No such file or directory")
    assert advice == "name PEM files that fit each other"


def test_it_says_what_read_histories_take(check):
    assert (
        "ok      read histories: 6.0 MiB of the capacity, in memory\n"
        in check.run("--set", "cache.ram.capacity=1 GiB").stdout
    )


# ---------------------------------------------------------------------- the cluster

IN_A_CLUSTER = ("--set", "cluster.name=trainers", "--set", "cluster.secret=env:SECRET")
OWNED = (*IN_A_CLUSTER, "--set", "cluster.pages=owned", "--set", "cluster.listen=127.0.0.1:0")
SEALS = Seals("trainers", ["a secret of sixteen"])


@pytest.fixture
def engine(monkeypatch):
    """Return the log of a cluster. Its view is ``engine.view``."""
    monkeypatch.setenv("SECRET", "a secret of sixteen")
    server = Server()
    checking = import_module("shadeproxy.cli.cluster_check")
    monkeypatch.setattr(checking, "open_log", lambda _settings: FakeLog(server))
    return server


def view_of(*addresses, seals=SEALS, arguments=OWNED, **differing):
    """Return a view of proxies with the settings of ``arguments``, except for ``differing``."""
    settings = Settings.load(None, arguments[1::2])
    own = {"wire": WIRE, "origin": origin_digest(settings), "config": agreed(settings)}
    facts = [
        NodeFacts(node=f"n{number}", weight=1.0, peer=one, **own | differing)
        for number, one in enumerate(addresses)
    ]
    return ViewRecord(7, tuple(Seat(one.node, seal_facts(one, seals)) for one in facts))


def row(result, name):
    """Return the line of a row, and the line that says what to change."""
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    place = next(place for place, line in enumerate(lines) if f" {name}: " in line)
    return lines[place], lines[place + 1]


def test_the_engine_and_the_other_proxies_are_asked(check, engine, control, taken_port):
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    seats = view_of(f"127.0.0.1:{control.port}", f"127.0.0.1:{closed}", f"127.0.0.1:{control.port}").seats
    engine.view = ViewRecord(7, (*seats[:2], seats[2]._replace(away=True)))
    control.answer = (200, '{"node": "n0"}')
    result = check.run(*OWNED)
    assert result.exit_code == 0, result.stdout
    assert "ok cluster.engine: answers; proxies in cluster trainers now: 2" in row(result, "cluster.engine")
    assert row(result, "proxy n0")[0] == f"ok proxy n0: 127.0.0.1:{control.port} answers"
    assert [request[:2] for request in control.requests] == [("GET", "/")]
    assert control.requests[0][2].startswith("AWS4-HMAC-SHA256 Credential=shade-peer/")
    said, change = row(result, "proxy n1")
    assert said.startswith("warning proxy n1: ")
    assert "cluster.listen and cluster.advertise" in change
    assert "ok cluster.listen: 127.0.0.1:0 is free" in row(result, "cluster.listen")
    taken = check.run(*OWNED[:-1], f"cluster.listen=127.0.0.1:{taken_port}")
    assert taken.exit_code == 1
    assert "cannot be bound" in row(taken, "cluster.listen")[0]


def test_proxies_that_share_hints_alone_are_not_asked(check, engine, control):
    engine.view = view_of(f"127.0.0.1:{control.port}", arguments=IN_A_CLUSTER)
    result = check.run(*IN_A_CLUSTER)
    assert result.exit_code == 0, result.stdout
    assert "proxies in cluster trainers now: 1" in row(result, "cluster.engine")[0]
    assert "proxy n0" not in result.stdout
    assert "cluster.listen" not in result.stdout
    assert control.requests == []


@pytest.mark.parametrize(
    ("differing", "arguments", "reason"),
    [
        ({"wire": 99}, OWNED, "node n0 of the cluster speaks version 99 of the nodes' protocol"),
        ({"origin": "another"}, OWNED, "node n0 of the cluster has another origin"),
        ({}, IN_A_CLUSTER, 'node n0 of the cluster has cluster.pages = "owned", this one "local"'),
        (
            {},
            (*OWNED, "--set", "cluster.lease=5 s"),
            "node n0 of the cluster has other settings in which nodes must agree",
        ),
    ],
)
def test_a_proxy_that_the_cluster_would_refuse_is_warned_of(check, engine, differing, arguments, reason):
    address = "127.0.0.1:1"
    engine.view = view_of(address, **differing)
    said, change = row(check.run(*arguments), "cluster.name")
    assert said.startswith(
        f"warning cluster.name: while its proxies run as they do, cluster trainers refuses this one: {reason}"
    )
    assert "the same release, origin, cluster.pages, cluster.cut_off, cluster.lease" in change
    own = check.run(*arguments, "--set", f"cluster.advertise={address}").stdout
    assert ("cluster.name" in own) == (arguments == IN_A_CLUSTER), "the checked proxy, as it runs now"


def test_an_engine_that_is_down_fails_the_check(check, engine):
    engine.up = False
    result = check.run(*IN_A_CLUSTER)
    assert result.exit_code == 1
    ((said, change),) = failures(result)
    assert said == "cluster.engine: the fake log is down"
    assert "Redis or Valkey runs and allows scripts" in change


def test_a_view_of_another_secret_fails_the_check(check, engine):
    engine.view = view_of("127.0.0.1:1", seals=Seals("trainers", ["another secret of sixteen"]))
    result = check.run(*IN_A_CLUSTER)
    assert result.exit_code == 1
    ((said, change),) = failures(result)
    assert "not sealed with this node's cluster.secret" in said
    assert "the same cluster.secret" in change


def test_a_secret_that_cannot_be_read_is_reported_without_a_traceback(check, engine, monkeypatch):
    monkeypatch.delenv("SECRET")
    result = check.run(*IN_A_CLUSTER)
    assert result.exit_code == 1
    assert "cluster.engine" in result.stdout
    del engine


def test_a_proxy_alone_asks_no_engine(check, engine):
    engine.up = False
    result = check.run()
    assert result.exit_code == 0, result.stdout
    assert "cluster" not in result.stdout
