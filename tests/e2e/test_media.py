"""Media that are full, read-only or deleted: a start says what to change, a proxy serves on."""

import os
import shutil
import signal
import subprocess
import urllib.request

import pytest

from .conftest import log_of, wait_for
from .test_doctor import names, readyz

SIZE = 100_000


@pytest.fixture
def small_medium(tmp_path):
    """``small_medium(name)``: a file system of its own, of 8 MiB."""
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
    """Every object, compared; where they came from."""
    sources = set()
    for path in sorted((bucket_directory / "data").iterdir()):
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
    """A file that takes all the room there is."""
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
    # On disk, so that what comes later is what does not fit.
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
    served.start()  # with catalogues, which are to be emptied before a segment is changed
    home = tmp_path / "proxy0"
    for name in ("ram", "disk", "state"):
        shutil.rmtree(home / name)
    for _ in range(3):
        read_all(served, bucket_directory)
    register(served, "first")
    report = served.get("/v1/doctor")
    assert names(report) >= {"tier ram deleted", "tier disk deleted", "state deleted"}
    assert all("restart" in one["remedy"] for one in report["findings"] if one["name"].endswith("deleted"))
    # The catalogues went too, and no segment waits for one.
    assert not any(tier["disabled_reason"] for tier in served.stats()["tiers"].values())
    told = str(readyz(served))
    assert "the directory of tier ram was deleted" in told
    assert "the directory of the control state was deleted" in told
    assert log_of(served, "directory was deleted or replaced")
    assert served.stop() == 0
    served.start()
    assert readyz(served) == (200, {"status": "ready"})
    read_all(served, bucket_directory)
