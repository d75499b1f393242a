"""Announced orders of a job that ends and begins again, and the state after an order was built."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shadeproxy.api.control.order_builder import OrderBuilder
from shadeproxy.core.errors import Conflict
from shadeproxy.core.types import JobContext, ObjectRef
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.jobs import Job, Progress, ignore
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.order.build import Build
from shadeproxy.hints.order.state import OrderState
from shadeproxy.hints.registry import HintRegistry

COUNT = 2000
_RNG = np.random.default_rng(0)
EPOCHS = [_RNG.permutation(COUNT).astype(np.uint32) for _ in range(3)]


class Training:
    """A job "j" that announces and reads whole epochs, at a thousand samples a second."""

    def __init__(self, dataset) -> None:
        self.seek = ignore
        self.hints = HintRegistry(on_lost=self._lost)
        self.hints.put_dataset(dataset)
        self.hints.put_job(Job("j", dataset=dataset.name), 0.0)
        self.orders = self.hints.orders
        self.hashes = [object_hash(dataset.ref(number)) for number in range(COUNT)]
        self.now_s = 1.0

    def _lost(self, orders, job):
        self.seek(orders, job)

    def announce(self, epoch: int) -> None:
        self.orders.put(self.hints.check_order("j", EPOCHS[epoch], epoch=epoch, rank=0), self.now_s)
        self.orders.settle()

    def read(self, epoch: int, start: int = 0, stop: int = COUNT) -> OrderState:
        for sample in EPOCHS[epoch][start:stop].tolist():
            self.now_s += 1e-3
            self.orders.note_read(self.hashes[sample], 0, JobContext("j", epoch, 0), self.now_s)
        return self.state

    @property
    def state(self) -> OrderState:
        state = self.orders.state("j")
        assert state is not None
        return state


@pytest.fixture
def training(make) -> Training:
    return Training(make(*(f"k{number}" for number in range(COUNT))))


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_job_that_was_started_anew_in_its_epoch_is_believed(training, epochs):
    for epoch in range(epochs):
        training.announce(epoch)
    training.read(0, stop=1530)
    training.now_s += 30.0
    for epoch in range(epochs):
        training.announce(epoch)
    assert training.state.left == epochs * COUNT
    state = training.read(0, stop=1000)
    assert (state.believed, state.surprises) == (True, 0)
    assert state.left == epochs * COUNT - 1000
    assert 800 <= state.position <= 1000
    assert training.orders.coming("j", 3).tolist() == EPOCHS[0][1000:1003].tolist()


def test_a_run_of_one_epoch_again(training):
    training.announce(0)
    assert training.read(0).left == 0
    training.now_s += 5.0
    training.announce(0)
    state = training.read(0)
    assert (state.believed, state.surprises, state.left) == (True, 0, 0)


def test_an_announcement_that_is_sent_twice_takes_nothing_back(training):
    training.announce(0)
    training.read(0, stop=1500)
    training.announce(0)
    assert training.state.left == COUNT - 1500
    assert training.read(0, start=1500).left == 0


async def test_an_order_that_cannot_be_built_keeps_no_reads(training, monkeypatch):
    training.announce(0)

    def fail(_build: Build) -> None:
        raise MemoryError

    monkeypatch.setattr(Build, "run", fail)
    training.orders.put(training.hints.check_order("j", EPOCHS[1], epoch=1, rank=0), training.now_s)
    with ThreadPoolExecutor(1) as pool, pytest.raises(MemoryError):
        await OrderBuilder(pool).settled(training.orders, "j")
    monkeypatch.undo()
    training.read(0, stop=500)
    (tracker,) = training.orders.trackers.values()
    assert tracker._log is None
    # The next build includes the reads that came meanwhile.
    training.announce(2)
    assert training.state.left == 3 * COUNT - 500


def test_reads_while_an_order_is_built_count_in_it(training):
    training.announce(0)
    training.read(0, stop=100)
    training.orders.put(training.hints.check_order("j", EPOCHS[1], epoch=1, rank=0), training.now_s)
    prepared = training.orders.begin("j")
    training.read(0, start=100, stop=700)
    training.orders.finish(prepared, prepared.build.run())
    assert training.state.left == 2 * COUNT - 700
    assert 500 <= training.state.position <= 700
    assert training.orders.coming("j", 3).tolist() == EPOCHS[0][700:703].tolist()


async def test_a_job_that_goes_on_elsewhere_is_sought_off_the_loop(training):
    training.announce(0)
    with ThreadPoolExecutor(1) as pool:
        builder = OrderBuilder(pool)
        training.seek = builder.seek
        training.read(0, stop=100)
        assert not training.read(0, start=1000, stop=1500).believed
        async with asyncio.timeout(60):
            while not training.state.believed:
                await asyncio.sleep(0.01)
        await builder.settled(training.orders, "j")
    state = training.read(0, start=1500)
    assert (state.believed, state.left) == (True, 0)


async def test_a_search_that_fails_changes_nothing(training, monkeypatch):
    training.announce(0)
    tried = asyncio.Event()

    def fail(_build: Build) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise MemoryError

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Build, "run", fail)
    with ThreadPoolExecutor(1) as pool:
        builder = OrderBuilder(pool)
        training.seek = builder.seek
        training.read(0, stop=100)
        training.read(0, start=1000, stop=1500)
        async with asyncio.timeout(60):
            await tried.wait()
            while builder._seeking:
                await asyncio.sleep(0.01)
    assert (training.state.believed, training.state.found) == (False, 100)


def test_an_order_of_a_job_that_was_registered_anew_meanwhile_is_refused(training):
    """An order is refused if its job was registered again after the order was checked. The check runs off the
    event loop. Here the dataset of the check had more samples than the present one.
    """
    hints = training.hints
    checked = hints.check_order("j", EPOCHS[0], epoch=0, rank=0)
    hints.delete_job("j")
    (name,) = hints.datasets
    builder = ManifestBuilder(name)
    builder.add(ObjectRef("b", "only"), None, None)
    hints.delete_dataset(name)
    hints.put_dataset(builder.finish())
    hints.put_job(Job("j", dataset=name), 0.0)
    with pytest.raises(Conflict, match="'j' was registered again meanwhile"):
        hints.orders.put(checked, 0.0)
    hints.orders.settle()
    assert hints.orders.state("j") is None


# ------------------------------------------------------------------ second runs


def begin_run(training, epoch=0):
    training.hints.put_job(Job("j", dataset="train"), training.now_s)
    training.hints.begin_run("j", 0, resumes=False)
    training.announce(epoch)


@pytest.mark.parametrize("stop", [COUNT, COUNT - 400])
@pytest.mark.parametrize("settles", [False, True])
def test_an_ended_job_that_runs_again_begins_its_order_anew(training, settles, stop):
    begin_run(training)
    training.read(0, stop=stop)
    training.hints.end_rank("j", 0)
    if settles:
        training.orders.settle()
    assert training.orders.position("j") is None
    begin_run(training)
    assert (training.state.left, training.state.position) == (COUNT, 0)
    state = training.read(0, stop=1000)
    assert (state.believed, state.surprises, state.left) == (True, 0, COUNT - 1000)


def test_a_job_that_withdraws_its_order_and_does_not_end_begins_anew_in_its_next_run(training):
    begin_run(training)
    training.read(0)
    training.orders.withdraw("j", 0, None, training.now_s)
    training.orders.settle()
    assert training.orders.position("j") is not None
    begin_run(training)
    assert (training.state.left, training.state.position) == (COUNT, 0)


def test_a_rank_that_ends_before_the_others_leaves_the_place_of_the_job(make):
    hints = HintRegistry()
    hints.put_dataset(make(*(f"k{number}" for number in range(COUNT))))
    hints.put_job(Job("j", dataset="train", world_size=2), 0.0)
    for rank in range(2):
        hints.orders.put(hints.check_order("j", EPOCHS[0][rank::2], epoch=0, rank=rank), 0.0)
    hints.orders.settle()
    for rank in range(2):
        hints.report_progress("j", rank, Progress(0, 500), 1.0)
    hints.end_rank("j", 0)
    hints.orders.settle()
    assert hints.orders.position("j") == Progress(0, 500)


def test_an_order_that_is_withdrawn_and_sent_again_keeps_the_place(training):
    training.announce(0)
    training.hints.report_progress("j", 0, Progress(0, 700), training.now_s)
    training.orders.withdraw("j", 0, None, training.now_s)
    training.orders.settle()
    training.announce(0)
    assert training.state.position == 700
