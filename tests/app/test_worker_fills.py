"""Fill memory of workers: which part of cache.inflight it gets, and the error if that is too little."""

import pytest

from shadeproxy.app.worker_fills import fill_memory_bytes, why_no_fills
from shadeproxy.config import Settings

MIB = 1024**2


def settings_of(workers, **changed):
    keys = {"origin.endpoint": "http://127.0.0.1:1", "s3.workers": workers, **changed}
    return Settings.load(None, [f"{key}={value}" for key, value in keys.items()])


@pytest.mark.parametrize(("workers", "each_mib"), [(1, 0), (2, 124), (3, 60), (16, 8), (17, 0)])
def test_workers_share_half_of_the_memory_for_pages_on_their_way(workers, each_mib):
    settings = settings_of(workers)
    assert fill_memory_bytes(settings) == each_mib * MIB
    rest = settings.cache.inflight - (workers - 1) * fill_memory_bytes(settings)
    assert rest >= max(settings.cache.inflight // 2, 2 * settings.cache.page_size)


def test_too_little_memory_says_how_much_is_needed():
    assert why_no_fills(settings_of(17)) == (
        "16 workers fetch no pages: set cache.inflight to 264.0 MiB or more, or fewer s3.workers"
    )
    enough = settings_of(17, **{"cache.inflight": "264 MiB"})
    assert why_no_fills(enough) == ""
    assert fill_memory_bytes(enough) == 8 * MIB


@pytest.mark.parametrize(
    "changed",
    [{"origin.delay": "10ms"}, {"origin.bandwidth": "1 MiB"}, {"origin.kind": "file", "origin.path": "/"}],
)
def test_origins_that_no_worker_can_read_need_no_memory(changed):
    settings = settings_of(17, **changed)
    assert fill_memory_bytes(settings) == 0
    assert why_no_fills(settings) == ""
