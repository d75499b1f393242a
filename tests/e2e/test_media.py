"""The medium of a tier or of the state is full, read-only or deleted. A start says what to change, and a
running proxy continues to serve.
"""

import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.reliability.chaos.media.medium import LoopMounted
from tests.support.served import log_of, names, readyz, wait_for

SIZE = 100_000


@pytest.fixture
def small_medium(tmp_path):
    """Return a function ``mount(name)`` that mounts a new file system of 8 MiB."""
    mounted = []

    def mount(name):
        path = tmp_path / name
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "shadeproxy-test", path],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            pytest.skip("mounting is not permitted here")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def filled(bucket_directory):
    for number in range(40):
        (bucket_directory / "data" / str(number)).write_bytes(os.urandom(SIZE))
    return {
        "origin__kind": "file",
        "origin__path": str(bucket_directory),
        "cache__ram__capacity": "1 MiB",
        "cache__disk__capacity": "3 MiB",
        "policy__name": "lru",
    }


def read_all(served, bucket_directory) -> set[str]:
    """Read every object, compare its bytes, and return the sources of the answers."""
    sources = set()
    for path in sorted((bucket_directory / "data").glob("[0-9]*")):
        with urllib.request.urlopen(f"{served.s3}/data/{path.name}", timeout=30) as answer:
            assert answer.read() == path.read_bytes()
            sources.add(answer.headers["x-shade-cache"])
    return sources


def register(served, name) -> None:
    lines = b"".join(b'{"bucket": "data", "key": "%d"}\n' % number for number in range(40))
    request = urllib.request.Request(
        f"{served.control}/v1/datasets/{name}",
        lines,
        {"Content-Type": "application/x-ndjson"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def fill_up(path) -> None:
    """Write a file that takes all the room of the file system."""
    with (path / "lost+found").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


def refused(served) -> str:
    with pytest.raises(AssertionError, match="serve did not become ready") as caught:
        served.start()
    assert served.process.wait(30) == 2
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["disk", "state"])
def test_a_full_medium_does_not_keep_the_proxy_from_starting(
    serve, small_medium, filled, bucket_directory, name
):
    setting = {"disk": "cache.disk.path", "state": "state.path"}[name]
    medium = small_medium(name)
    served = serve(**filled, **{setting.replace(".", "__"): str(medium)})
    state = medium if name == "state" else medium.parent / "proxy0" / "state"
    register(served, "first")
    # Wait until the dataset is on disk. After that only later changes find no room.
    wait_for(lambda: b"datasets/first" in (state / "cache.db-wal").read_bytes())
    fill_up(medium)
    register(served, "second")
    told = "control state is not saved" if name == "state" else "the medium of tier disk is full"
    wait_for(lambda: read_all(served, bucket_directory) and told in str(readyz(served)))
    assert names(served.get("/v1/doctor")) >= {"state not writable" if name == "state" else "tier disk full"}
    for end in (signal.SIGTERM, signal.SIGKILL):
        served.stop(end)
        served.start_whole()
        assert "first" in str(served.get("/v1/datasets")), "what was saved before is still there"
        read_all(served, bucket_directory)
    served.stop()
    (medium / "lost+found").unlink()
    served.start()
    assert "first" in str(served.get("/v1/datasets"))
    wait_for(lambda: readyz(served) == (200, {"status": "ready"}))
    read_all(served, bucket_directory)


@pytest.mark.parametrize("setting", ["cache.disk.path", "state.path"])
def test_a_read_only_medium(serve, small_medium, filled, bucket_directory, setting):
    medium = small_medium(setting.split(".")[-2])
    served = serve(**filled, **{setting.replace(".", "__"): str(medium)})
    register(served, "first")
    read_all(served, bucket_directory)
    served.stop()
    subprocess.run(["mount", "-o", "remount,ro", medium], check=True)
    text = refused(served)
    assert f"{setting}: cannot use {medium}: Read-only file system; choose a directory that user id" in text
    subprocess.run(["mount", "-o", "remount,rw", medium], check=True)
    served.start()
    assert "first" in str(served.get("/v1/datasets"))
    wait_for(
        lambda: "disk" in read_all(served, bucket_directory) or "ram" in read_all(served, bucket_directory)
    )


def test_directories_that_are_deleted_under_a_running_proxy(serve, filled, bucket_directory, tmp_path):
    served = serve(**filled)
    read_all(served, bucket_directory)
    served.stop()
    served.start()  # The new session has catalogues. It must make them empty before it changes a segment.
    wait_for(lambda: not served.stats()["gauges"]["recovering_segments"])
    home = tmp_path / "proxy0"
    for name in ("ram", "disk", "state"):
        shutil.rmtree(home / name)
    for _ in range(3):
        read_all(served, bucket_directory)
    register(served, "first")
    report = served.get("/v1/doctor")
    assert names(report) >= {"tier ram deleted", "tier disk deleted", "state deleted"}
    assert all("restart" in one["remedy"] for one in report["findings"] if one["name"].endswith("deleted"))
    told = str(readyz(served))
    assert "the directory of tier ram was deleted" in told
    assert "the directory of the control state was deleted" in told
    assert log_of(served, "directory was deleted or replaced")
    assert served.stop() == 0
    served.start()
    assert readyz(served) == (200, {"status": "ready"})
    read_all(served, bucket_directory)


@pytest.fixture
def failing_medium(tmp_path):
    """Return an ext4 file system that only this test uses. The test can make it read-only and
    writable again.
    """
    work = tmp_path / "loop"
    work.mkdir()
    try:
        medium = LoopMounted(work)
    except (BenchError, OSError):
        pytest.skip("loop mounts are not permitted here")
    yield medium
    medium.close()


def put_all(served, body) -> dict[int, list[str]]:
    """Write all objects. Return the names of the objects, grouped by the status of the answer."""
    answers = {}
    for number in range(40):
        request = urllib.request.Request(f"{served.s3}/data/{number}", body, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, text = answer.status, ""
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        answers.setdefault(status, []).append(text)
    return answers


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_acknowledged_on_a_medium_that_failed_is_not_undone(
    failing_medium, serve, filled, bucket_directory, *, number
):
    served = serve(**filled, cache__disk__path=str(failing_medium.root / "disk"))
    for _ in range(2):
        sources = read_all(served, bucket_directory)
    assert "disk" in sources
    failing_medium.settle()
    failing_medium.break_("ext4 error")
    assert set(put_all(served, b"new" * 1000)) == {200}
    wait_for(lambda: "tier disk could not erase old pages, and tries again" in str(readyz(served)))
    assert "tier disk owes erasures" in names(served.get("/v1/doctor"))
    assert served.stats()["tiers"]["disk"]["owed_erasures"] > 0
    served.process.send_signal(number)
    served.process.wait(30)
    failing_medium.repair()
    served.start()
    read_all(served, bucket_directory)


def test_where_nothing_can_be_noted_a_write_is_refused_and_not_carried_out(
    failing_medium, serve, filled, bucket_directory, tmp_path
):
    """The proxy refuses a write, and does not carry it out, if it has no place to store the tombstone. There
    is no tmpfs, and the state and the disk tier are both on the failing device.
    """
    settings = {
        "cache__ram__path": str(tmp_path / "no-tmpfs"),
        "cache__disk__path": str(failing_medium.root / "disk"),
        "state__path": str(failing_medium.root / "state"),
    }
    served = serve(**filled, **settings)
    for _ in range(2):
        sources = read_all(served, bucket_directory)
    assert "disk" in sources
    failing_medium.settle()
    failing_medium.break_("ext4 error")
    before = {path.name: path.read_bytes() for path in (bucket_directory / "data").glob("[0-9]*")}
    (answers,) = put_all(served, b"new" * 1000).items()
    status, texts = answers
    assert status == 503
    assert all("cannot record that its pages of this object are old" in text for text in texts)
    assert all("nothing was written" in text for text in texts)
    assert {path.name: path.read_bytes() for path in (bucket_directory / "data").glob("[0-9]*")} == before
    assert "some writes are refused" in str(readyz(served))
    assert "tier disk refuses writes" in names(served.get("/v1/doctor"))
    read_all(served, bucket_directory)
    served.process.kill()
    served.process.wait(30)
    failing_medium.repair()
    served.start()
    assert set(put_all(served, b"new" * 1000)) == {200}
    read_all(served, bucket_directory)
