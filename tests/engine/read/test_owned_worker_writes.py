"""Writes through a worker in a cluster. The coordinator lets the worker send only writes of objects that this
proxy owns.
"""

import asyncio
from contextlib import suppress

import msgspec
import pytest

from shadeproxy.core.errors import NotOwnerNow, WriteUnconfirmed
from shadeproxy.core.types import ObjectRef
from shadeproxy.engine.read.forward_messages import Allowed, BeginWrite, Ended, EndWrite, Refused
from shadeproxy.engine.read.worker_forwards import WorkerForwards
from tests.support.ownership import SetOwnership

REF = ObjectRef("b", "k")


class Always:
    """A stand-in for slots and credentials that are available at once."""

    async def take(self):
        return "slot"

    async def send(self):
        """Do nothing, because the worker has the credentials already."""


class Sent(list):
    """An outbox that keeps all messages."""

    send = list.append


@pytest.fixture
async def worker(make_bench):
    """Yield the coordinator's half of a worker. ``say`` sends it a message, and returns the answers."""
    bench = await make_bench(ownership=SetOwnership())
    sent = Sent()
    forwards = WorkerForwards(bench.engine, sent, Always(), slots=Always(), counts=None, requests=None)
    forwards.owned = bench.engine._ownership

    async def say(message):
        forwards.hear(msgspec.msgpack.encode([message]))
        for _ in range(10):
            await asyncio.sleep(0)
        answers, sent[:] = list(sent), []
        return answers

    forwards.say = say
    yield forwards
    for task in bench.engine._writes._lingering:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_write_of_an_own_object_is_sent_by_the_worker(worker):
    assert await worker.say(BeginWrite(1, "c", (tuple(REF),))) == [Allowed(1)]
    assert await worker.say(EndWrite(1, is_known=True)) == [Ended(1)]


async def test_a_worker_never_sends_a_write_of_another_owner(worker):
    worker.owned.elsewhere.add(REF)
    (refused, ended) = await worker.say(BeginWrite(1, "c", (tuple(REF),)))
    assert isinstance(refused, Refused)
    assert isinstance(refused.failure.unpack(), NotOwnerNow)
    assert ended == Ended(1)


async def test_a_write_of_a_worker_whose_lease_has_ended_is_not_confirmed(worker):
    await worker.say(BeginWrite(1, "c", (tuple(REF),)))
    worker.owned.lost.add(REF)
    (refused, ended) = await worker.say(EndWrite(1, is_known=True))
    assert isinstance(refused, Refused)
    assert isinstance(refused.failure.unpack(), WriteUnconfirmed)
    assert ended == Ended(1)
