"""Many clients, connected to several workers, ask for one new object at the same time."""

import asyncio
import random
import threading
from contextlib import contextmanager

import pytest

from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reliability.kills.client import RIGHT, read
from shadeproxy_bench.reliability.kills.origin import PAGE_BYTES, PacedOrigin
from shadeproxy_bench.reliability.kit.workers import ports_to
from tests.support.workers import wait_for_workers

CLIENTS = 64
pytestmark = pytest.mark.timeout(180)


@contextmanager
def slow_origin():
    """Run a slow origin in a thread. Yield the origin and its port."""
    origin, ready, loop = PacedOrigin(random.Random(1)), threading.Event(), asyncio.new_event_loop()
    ports, serving = [], []

    async def serve():
        async with await asyncio.start_server(origin.serve_connection, "127.0.0.1", 0) as server:
            ports.append(server.sockets[0].getsockname()[1])
            ready.set()
            await server.serve_forever()

    def run():
        serving.append(loop.create_task(serve()))
        loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(30)
    try:
        yield origin, ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.wait(serving))
        loop.close()


def test_one_new_key_asked_by_64_clients_of_several_workers_is_one_request(serve):
    with slow_origin() as (origin, port):
        served = serve(
            origin__kind="s3",
            origin__endpoint=f"http://127.0.0.1:{port}",
            origin__credentials__source="anonymous",
            auth__anonymous="true",
            s3__workers="4",
            cache__page_size=str(PAGE_BYTES),
            cache__ram__capacity="64 MiB",
        )
        workers = wait_for_workers(served)
        host, _, s3_port = served.s3.removeprefix("http://").rpartition(":")
        pieces = [Piece(size, number) for number, size in enumerate((4_000, 100_000, 1_000_000, PAGE_BYTES))]

        async def ask(piece: Piece):
            return await asyncio.gather(*(read((host, int(s3_port)), piece) for _ in range(CLIENTS)))

        fetched = False
        for piece in pieces:
            assert {end.outcome for end in asyncio.run(ask(piece))} == {RIGHT}
            fetched |= any(ports_to(worker, port) for worker in workers)
        assert [origin.gets[piece.number, 0] for piece in pieces] == [1] * len(pieces)
        assert fetched, "the workers fetch pages"
