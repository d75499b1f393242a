"""A worker bounds the bytes of all object names in its unanswered questions to the coordinator."""

import asyncio

import pytest

from shadeproxy.api.s3.worker_path import AskedCoordinator, WorkerPath
from shadeproxy.core.errors import Overloaded
from shadeproxy.core.types import ObjectRef

THIRD = 400 * 1024


class Outbox:
    """An outbox to a coordinator that never answers."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


@pytest.mark.parametrize(
    "ref",
    [
        ObjectRef("b", "k" * THIRD),
        ObjectRef("b", "\u672c" * (THIRD // 3)),
        ObjectRef("b", "k", "n" * THIRD),
        ObjectRef("b" * THIRD, "k"),
    ],
    ids=["key", "other-script", "namespace", "bucket"],
)
async def test_the_bytes_of_all_names_under_way_are_bounded(ref):
    outbox = Outbox()
    path = WorkerPath(AskedCoordinator(outbox, keys=None), origin=None)

    async def write():
        async with path.writing([ref]):
            raise AssertionError("no answer came")

    waiting = [asyncio.create_task(write()) for _ in range(2)]
    while len(outbox.sent) < len(waiting):
        await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too many writes wait"):
        await asyncio.wait_for(write(), 1.0)
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
