"""The garbage collector looks at new objects only. Now and then it looks at all objects."""

import gc
import subprocess
import sys

import pytest

from shadeproxy.app import limits

_REMEMBER = """
import gc
from shadeproxy.app.limits import collect_less

walked, kept = [], []

def note(phase, info):
    if phase == "start" and info["generation"] == 2:
        walked.append(sum(len(gc.get_objects(generation=number)) for number in range(3)))

collect_less()
gc.callbacks.append(note)
kept.extend([[number] for number in range(1000)] for _ in range(300))
print(len(walked), max(walked))
"""


@pytest.fixture
def collecting(monkeypatch):
    """Set the garbage collector as the start of a proxy does. After the test, undo this."""
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    now = [0.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    limits.collect_less()
    yield now
    gc.callbacks[:] = callbacks
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # tests/conftest.py had frozen the objects of the tests.
    gc.collect()


class Node:
    def __init__(self):
        self.me = self


def known(count):
    return [[number] for number in range(count)]


def test_what_outlived_a_collection_is_not_walked_again(collecting):
    kept = known(50_000)
    gc.collect()
    assert gc.get_count()[0] < 50_000
    assert len(gc.get_objects()) < 10_000
    assert gc.get_freeze_count() > len(kept)


def test_no_collection_of_its_own_walks_much():
    """Each collection looks at few objects in a process that has more and more of them.

    The process remembers the metadata of objects, and does nothing else.
    """
    ended = subprocess.run(
        [sys.executable, "-c", _REMEMBER], check=True, capture_output=True, text=True, timeout=60
    )
    count, most = map(int, ended.stdout.split())
    assert count > 5
    assert most < 60_000


def test_cycles_are_found_while_they_are_new_and_all_of_them_within_the_hour(collecting):
    Node()
    assert gc.collect() >= 1
    old = Node()
    gc.collect()
    del old
    assert gc.collect() == 0
    collecting[0] += 3601
    assert gc.collect() >= 1
