"""A cache belongs to one origin. A start with another origin never destroys the cache. A proxy refuses itself
as its origin.
"""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from tests.support.copied import run_command
from tests.support.served import wait_for

OBJECT = bytes(20_000)


def read(client, key: str) -> tuple[bytes, str]:
    answer = client.get_object(Bucket="data", Key=key)
    return answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"]["x-shade-cache"]


@contextmanager
def forwarding() -> Iterator[tuple[int, Callable[[str], None]]]:
    """Yield a port that forwards connections, and a function that sets the URL to which they are
    forwarded.
    """
    targets: list[tuple[str, int]] = []

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError), sink:
            while data := source.recv(1 << 16):
                sink.sendall(data)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if not targets:
                client.close()
                continue
            server = socket.create_connection(targets[0])
            for pair in ((client, server), (server, client)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    def lead_to(url: str) -> None:
        parts = urlsplit(url)
        targets.append((parts.hostname or "", parts.port or 80))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield listener.getsockname()[1], lead_to
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(5)


@pytest.fixture
def other_origin(serve, bucket_directory, tmp_path):
    """Return settings of a second origin. Their directories hold the first origin's cache, which has an
    object of the same name.
    """
    (bucket_directory / "data" / "00000").write_bytes(OBJECT)
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (other / "data" / "00000").write_bytes(b"of the other origin")
    directory = {"cache__ram__path": str(tmp_path / "kept"), "state__path": str(tmp_path / "state")}
    first = serve(origin__kind="file", origin__path=str(bucket_directory), **directory)
    assert read(first.client(), "00000")[1] == "origin"
    # A page is stored a moment after the reader has received it.
    wait_for(lambda: read(first.client(), "00000")[1] == "ram")
    first.stop()
    return {"origin__kind": "file", "origin__path": str(other), **directory}


def test_a_cache_of_another_origin_is_refused_and_kept(serve, bucket_directory, other_origin):
    with pytest.raises(AssertionError, match="serve did not become ready") as refused:
        serve(**other_origin)
    assert f"is a cache of file {bucket_directory}, and the origin is now file" in str(refused.value)
    back = serve(**other_origin | {"origin__path": str(bucket_directory)})
    wait_for(lambda: not back.stats()["gauges"]["recovering_segments"])
    assert read(back.client(), "00000") == (OBJECT, "ram")


def test_a_cache_of_another_origin_is_set_aside_when_asked(serve, other_origin):
    second = serve(**other_origin, cache__on_other_origin="set-aside")
    assert read(second.client(), "00000") == (b"of the other origin", "origin")
    findings = second.get("/v1/doctor")["findings"]
    assert [one["name"] for one in findings if "set aside" in one["name"]] == ["cache of tier ram set aside"]


def test_a_cache_is_dropped_by_purge_all_but_not_under_a_running_proxy(serve, other_origin):
    second = serve(**other_origin, cache__on_other_origin="set-aside")
    assert read(second.client(), "00000")[1] == "origin"
    wait_for(lambda: read(second.client(), "00000")[1] == "ram")
    purge = ["purge", "--all", *second.arguments]
    refused = run_command(*purge)
    assert refused.returncode == 2
    path, pid = other_origin["cache__ram__path"], second.process.pid
    assert refused.stderr == (
        f"error: cache.ram.path: {path} is in use by process {pid}; nothing was deleted. Stop that proxy"
        " first; or drop single buckets or prefixes while it runs: shadeproxy purge s3://BUCKET/PREFIX\n"
    )
    second.stop()
    only_looked = run_command(*purge, "--dry-run")
    assert only_looked.returncode == 0
    assert "would drop" in only_looked.stdout
    second.start_whole()
    assert read(second.client(), "00000")[1] == "ram"
    second.stop()
    done = run_command(*purge)
    assert done.returncode == 0
    assert "dropped" in done.stdout
    second.start_whole()
    assert read(second.client(), "00000")[1] == "origin"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_check_beside_a_running_proxy_of_the_same_configuration_is_well(
    serve, bucket_directory, other_origin, workers
):
    proxy = serve(**other_origin | {"origin__path": str(bucket_directory)}, s3__workers=workers)
    places = [f"s3.listen={urlsplit(proxy.s3).netloc}", f"control.listen={urlsplit(proxy.control).netloc}"]
    done = run_command("check", *proxy.arguments, *(item for place in places for item in ("--set", place)))
    assert done.returncode == 0, done.stdout
    assert f"running proxy: process {proxy.process.pid} holds cache.ram.path" in done.stdout
    assert "and listens at s3.listen and control.listen: this configuration is in use" in done.stdout
    assert read(proxy.client(), "00000")[0] == OBJECT


def test_a_proxy_whose_origin_is_itself_says_so(serve):
    """A proxy whose origin is the proxy itself reports this. A forwarded port gives the proxy another
    address, so the configuration alone does not show the loop.
    """
    with forwarding() as (port, lead_to):
        proxy = serve(origin__endpoint=f"http://127.0.0.1:{port}", origin__credentials="anonymous")
        lead_to(proxy.s3)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{proxy.s3}/data/key", timeout=20)
        assert refused.value.code == 400
        assert b"origin.endpoint names this proxy itself" in refused.value.read()
        (finding,) = [one for one in proxy.get("/v1/doctor")["findings"] if "this proxy" in one["name"]]
        assert finding["remedy"] == "set origin.endpoint to the object store"
        assert "origin.endpoint names this proxy itself" in proxy.log.read_text()


@pytest.mark.parametrize("place", [["s3://data/"], ["--url", "http://127.0.0.1:9001"]])
def test_purge_all_takes_no_place(tmp_path, place):
    """The command purges the directories of this machine. So it accepts neither a proxy's URL nor a
    prefix.
    """
    settings = [f"cache.ram.path={tmp_path}/ram", "cache.disk.capacity=0"]
    arguments = [item for setting in settings for item in ("--set", setting)]
    ended = run_command("purge", "--all", *place, *arguments)
    assert ended.returncode == 2
    assert f"while no proxy runs on them: leave out {place[-1]}, or --all" in ended.stderr
