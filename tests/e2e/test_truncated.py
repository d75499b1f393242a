"""Another program truncates a segment of a running proxy. The proxy reports this, ends or continues, and
starts again without errors.
"""

import os
import signal
import urllib.request

import pytest

COUNT, SIZE = 60, 24_000


@pytest.fixture
def filled(serve, bucket_directory):
    """Return a function ``filled(**settings)`` that starts a proxy and reads all objects twice. The first
    reads come from the origin, and the second ones from the RAM tier.
    """
    for number in range(COUNT):
        (bucket_directory / "data" / str(number)).write_bytes(os.urandom(SIZE))

    def filled(**settings):
        served = serve(origin__kind="file", origin__path=str(bucket_directory), **settings)
        for expected in ("origin", "ram"):
            assert set(read_all(served, bucket_directory)) == {expected}
        return served

    return filled


def read_all(served, bucket_directory) -> list[str]:
    """Read every object, compare its bytes, and return the sources of the answers."""
    sources = []
    for path in sorted((bucket_directory / "data").iterdir()):
        with urllib.request.urlopen(f"{served.s3}/data/{path.name}", timeout=30) as answer:
            assert answer.read() == path.read_bytes()
            sources.append(answer.headers["x-shade-cache"])
    return sources


def segments(served) -> list:
    home = served.log.parent
    return [path for path in (home / "ram").glob("*.seg") if path.stat().st_blocks]


def test_truncated_under_a_running_proxy(filled, bucket_directory):
    served = filled()
    for segment in segments(served):
        os.truncate(segment, 0)
    with pytest.raises(OSError, match=r"Remote end closed|reset|refused"):
        read_all(served, bucket_directory)
    assert served.process.wait(30) == -signal.SIGBUS
    log = served.log.read_text()
    assert "fatal: a file of the cache was truncated while the proxy used it: " in log
    assert f"000000.seg has 0 of 67,108,864 bytes. Only root and user id {os.geteuid()} can write it" in log
    assert "Fatal Python error: Bus error" in log
    served.start_whole()
    read_all(served, bucket_directory)
    assert set(read_all(served, bucket_directory)) == {"ram"}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("left", [0, 4096, 100_000, 1_000_003])
def test_truncated_while_it_is_stopped(filled, bucket_directory, end, left):
    served = filled()
    served.stop(end)
    for segment in segments(served):
        os.truncate(segment, left)
    served.start_whole()
    read_all(served, bucket_directory)
    assert set(read_all(served, bucket_directory)) == {"ram"}


def test_truncated_and_made_as_long_again_while_it_is_stopped(filled, bucket_directory):
    served = filled()
    served.stop()
    for segment in segments(served):
        size = segment.stat().st_size
        os.truncate(segment, 500_000)
        os.truncate(segment, size)
    served.start_whole()
    read_all(served, bucket_directory)
    assert set(read_all(served, bucket_directory)) == {"ram"}
