"""``is_resident`` says which pages of a file are in the kernel's page cache. Pages of a sparse file that were
never touched are not.
"""

import mmap
import os
import threading

import numpy as np
import pytest

from shadeproxy.tiers.medium import is_resident

PAGE = mmap.PAGESIZE
MIB = 1 << 20
PAGES = 20 * MIB // PAGE  # more than one mincore call covers


@pytest.fixture
def mapped(tmp_path):
    """Yield the address of a mapped file in which all pages except two were written."""
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, PAGES * PAGE)
    for page in set(range(PAGES)) - {10, PAGES - 2}:
        os.pwrite(descriptor, b"x", page * PAGE)
    with mmap.mmap(descriptor, PAGES * PAGE, access=mmap.ACCESS_READ) as mapping:
        array = np.frombuffer(mapping, np.uint8)
        yield array.ctypes.data
        del array
    os.close(descriptor)


def test_every_page_that_is_touched_counts_and_no_other(mapped):
    assert is_resident(mapped, 0, 10 * PAGE)
    assert is_resident(mapped, 11 * PAGE, (PAGES - 13) * PAGE), "16 MiB and more, in several calls"
    assert is_resident(mapped, 11 * PAGE + 1, PAGE - 1)
    assert not is_resident(mapped, 9 * PAGE, PAGE + 1), "the last byte lies in the page that is missing"
    assert not is_resident(mapped, 11 * PAGE - 1, 2), "and so does the first"
    assert not is_resident(mapped, 11 * PAGE, (PAGES - 12) * PAGE), "missing from what the second call asks"


def test_what_is_not_mapped_is_an_error(mapped):
    with pytest.raises(OSError, match="mincore"):
        is_resident(mapped + 1, 0, PAGE)


def test_threads_do_not_read_each_others_answers(mapped):
    wrong = []

    def ask(first, pages, expected):
        wrong.extend(1 for _ in range(3000) if is_resident(mapped, first * PAGE, pages * PAGE) != expected)

    threads = [
        threading.Thread(target=ask, args=asked) for asked in ((0, 10, True), (5, 10, False), (11, 99, True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
