"""The start of a proxy's parts: stored pins are applied, and each new epoch of a job lists its
dataset once.
"""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest

from shadeproxy.app.opening import PartOpener, check_data_set
from shadeproxy.config import Settings
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.rules import Rules
from shadeproxy.hints.jobs import Job, Progress
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from tests.support.clock import ManualClock

NOW_S = 1000.0


class Engine:
    """A stand-in for the engine. It records which prefixes are to be checked by a listing."""

    def __init__(self):
        self.cache = SimpleNamespace(residents=[1])
        self.checked = []

    def check_listed(self, bucket, prefix, most_pages, namespace):
        assert namespace == ""
        self.checked.append((bucket, prefix, most_pages))


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def hints(engine):
    hints = HintRegistry(on_epoch=lambda job: check_data_set(job, hints, engine))
    builder = ManifestBuilder("train")
    for number in range(1500):
        builder.add(ObjectRef("b", f"photos/{number:04d}"), None, None)
    builder.add(ObjectRef("labels", "all.csv"), None, None)  # The last entry is always compared.
    hints.put_dataset(builder.finish())
    for name, dataset in (("trained", "train"), ("scored", None)):
        hints.put_job(Job(name, dataset=dataset, world_size=2), NOW_S)
    return hints


ONCE = [("b", "photos/", 3), ("labels", "all.csv", 1)]


def test_each_epoch_is_checked_once_whatever_the_rank_and_the_way_it_is_told(hints, engine):
    for rank in (0, 1):
        hints.report_progress("trained", rank, Progress(0, 10), NOW_S)
    hints.jobs.touch("trained", NOW_S, 0)
    assert engine.checked == ONCE
    hints.jobs.touch("trained", NOW_S, 1)
    hints.report_progress("trained", 0, Progress(1, 0), NOW_S)
    hints.report_progress("trained", 1, Progress(0, 20), NOW_S)  # Rank 1 is still in the epoch before.
    assert engine.checked == ONCE * 2


def test_a_job_that_begins_anew_is_checked_again(hints, engine):
    hints.jobs.touch("trained", NOW_S, 40)
    hints.jobs.touch("trained", NOW_S + 100, 0)
    hints.jobs.touch("trained", NOW_S + 101, 1)
    assert engine.checked == ONCE * 3
    hints.delete_job("trained")
    hints.put_job(Job("trained", dataset="train"), NOW_S)
    hints.jobs.touch("trained", NOW_S + 102, 0)
    assert engine.checked == ONCE * 4


def test_ranks_that_are_apart_for_long_are_no_new_beginning(hints, engine):
    for minute in range(10):
        hints.jobs.touch("trained", NOW_S + 60 * minute, 1)
        hints.jobs.touch("trained", NOW_S + 60 * minute + 30, 0)
    assert engine.checked == ONCE


def test_a_run_that_ended_and_one_like_it_are_two(hints, engine):
    hints.jobs.touch("trained", NOW_S, 0)
    for rank in (0, 1):
        hints.end_rank("trained", rank)
    hints.put_job(Job("trained", dataset="train", world_size=2), NOW_S)
    hints.jobs.touch("trained", NOW_S, 0)
    assert engine.checked == ONCE * 2


def test_nothing_is_listed_for_who_names_no_epoch_or_no_data_set_or_while_nothing_is_cached(hints, engine):
    hints.jobs.touch("trained", NOW_S)
    hints.jobs.touch("scored", NOW_S, 3)
    engine.cache.residents = []
    hints.jobs.touch("trained", NOW_S, 3)
    assert engine.checked == []


async def test_stored_pins_are_applied_to_the_cached_pages_at_a_start():
    cache = Mock(renew_pins=AsyncMock())
    async with AsyncExitStack() as stack:
        opener = PartOpener(Settings(), stack, clock=ManualClock(), stats=Mock())
        opener.pins(Mock(pins=Pins(Rules(()))), cache)
        await asyncio.sleep(0)
    cache.renew_pins.assert_awaited_once_with()
