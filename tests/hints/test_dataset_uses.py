"""The last use of a dataset is known, is stored from time to time, and survives a restart."""

import pytest

from shadeproxy.core.errors import StateError
from shadeproxy.hints.changes import DeleteDataset, DeleteJob, PutDataset, PutJob
from shadeproxy.hints.dataset_uses import DatasetUses
from shadeproxy.hints.registry import HintRegistry


@pytest.fixture
def dirty():
    return []


@pytest.fixture
def uses(dirty):
    return DatasetUses(lambda *item: dirty.append(item))


def test_a_use_is_stored_at_once_and_then_every_ten_minutes(uses, dirty):
    stored = []
    for now_s in range(1000, 4000, 100):
        before = len(dirty)
        uses.note("d", float(now_s))
        stored += [now_s] * (len(dirty) - before)
    assert stored == [1000, 1600, 2200, 2800, 3400]
    assert set(dirty) == {("uses", "d")}
    assert uses.get("d") == 3900.0


def test_a_clock_that_goes_back_does_not_make_a_use_older(uses):
    uses.note("d", 1000.0)
    uses.note("d", 10.0)
    assert uses.get("d") == 1000.0


def test_a_registration_and_the_last_sign_of_a_deleted_job_are_uses(make):
    hints = HintRegistry()
    PutDataset(make("x")).apply(hints, 100.0)
    assert hints.uses.get("train") == 100.0
    PutDataset(make("x")).apply(hints, 200.0)
    assert hints.uses.get("train") == 200.0
    PutJob("j", "train", 1, 1.0, 3600.0).apply(hints, 300.0)
    hints.jobs.touch("j", 5000.0)
    DeleteJob("j").apply(hints, 9000.0)
    assert hints.uses.get("train") == 5000.0
    DeleteDataset("train").apply(hints, 9000.0)
    assert hints.uses.get("train") is None
    assert hints.export("uses", "train") is None


def test_a_restart_keeps_the_last_use_and_takes_an_unknown_one_for_now(make):
    hints = HintRegistry()
    PutDataset(make("x")).apply(hints, 100.0)
    again, dirty = HintRegistry(dirty=lambda *item: dirty.append(item)), []
    again.restore("datasets", "train", hints.export("datasets", "train"), 5000.0)
    assert again.uses.get("train") == 5000.0
    assert dirty == [("uses", "train")]
    again.restore("uses", "train", hints.export("uses", "train"), 5000.0)
    assert again.uses.get("train") == 100.0
    with pytest.raises(StateError, match="stored state"):
        again.restore("uses", "train", b"\x80", 5000.0)


def test_a_stored_use_from_the_future_counts_as_now(make):
    hints = HintRegistry()
    PutDataset(make("x")).apply(hints, 9e9)
    again = HintRegistry()
    again.restore("uses", "train", hints.export("uses", "train"), 5000.0)
    assert again.uses.get("train") == 5000.0
