"""The process of the tests keeps no objects of a test that has ended, and not their memory.

tests/conftest.py and tests/support/released.py say what would stay without their help.
"""

import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web, web_app
from aiohttp.test_utils import TestClient, TestServer

from tests.support.released import release_memory


class Columns:
    """An object that refers to itself, as an engine does, so that only the garbage collector frees it."""

    def __init__(self):
        self.me = self


@web.middleware
async def middleware(request, handler):
    return await handler(request)


@pytest.fixture
async def application():
    app = web.Application(middlewares=[middleware])

    async def answer(_request, columns=Columns()):  # noqa: B008 (lives as long as the handler)
        return web.Response(text=type(columns).__name__)

    app.router.add_get("/", answer)
    return app


async def test_an_application_has_answered(application):
    async with TestClient(TestServer(application)) as client:
        assert await (await client.get("/")).text() == "Columns"
    assert web_app._cached_build_middleware.cache_info().currsize > 0


def test_an_application_and_its_engine_go_with_their_test():
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Columns)]


def test_collections_are_frequent_and_leave_out_modules_and_collected_tests():
    assert gc.get_threshold() == (700, 10, 1)
    assert gc.get_freeze_count() > 50_000
    gc.collect()
    assert len(gc.get_objects()) < gc.get_freeze_count()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is freed")
def test_memory_that_a_file_freed_goes_back_to_the_system():
    taken = [b"1" * 100_000 for _ in range(2_000)]
    kept = taken[-1]  # Above the rest in the heap, so glibc by itself gives none of it back.
    with_all = resident_bytes()
    del taken
    release_memory()
    assert resident_bytes() < with_all - 100_000_000
    assert len(kept) == 100_000


_LARGE = """
import os
from pathlib import Path

from tests.support.released import keep_no_large_blocks


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


keep_no_large_blocks()
size = 16 << 20
larger = b"1" * (size + size // 4)
del larger  # From now on, glibc by itself would keep blocks of up to this size.
block, above = b"1" * size, [b"1" * 100_000 for _ in range(100)]
with_block = resident_bytes()
del block
print(with_block - resident_bytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is freed")
def test_a_large_block_goes_back_as_soon_as_it_is_freed():
    """A process of its own: if a part of the heap is free, glibc takes large blocks from there."""
    program = subprocess.run([sys.executable, "-c", _LARGE], capture_output=True, text=True, check=True)
    assert int(program.stdout) > 8 << 20
