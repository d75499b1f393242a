"""``shadeproxy serve`` of a cluster, with a check at its end that nothing is under way.

It fails if there is still a read, a flight, memory of the ledger, a relayed request or a task.
"""

from tests.support.copied import COPY
from tests.support.served import Served

LATE_WRITE = "SHADEPROXY_TEST_LATE_WRITE_S"
"""The name of the environment variable that says for how many seconds a proxy checks each object with the
origin before it answers, after its start and after a fault.

Without the variable this time is a minute, and a test of the end of a lease shows nothing.
"""
_TEXT = f"""
import asyncio, os, runpy
from shadeproxy.cluster.peers import Peer
from shadeproxy.cluster.timing import Timing
from shadeproxy.engine.engine import Engine

close_engine, close_peer, cancel = Engine.aclose, Peer.aclose, asyncio.runners._cancel_all_tasks
relaying = {{}}

async def engine_closed(engine):
    await close_engine(engine)
    engine.assert_quiescent()

async def peer_closed(peer):
    try:
        await close_peer(peer)
    finally:
        relaying[peer.node] = peer._users

def no_task(loop):
    left = asyncio.all_tasks(loop)
    cancel(loop)
    assert not left, left
    assert not any(relaying.values()), relaying

Engine.aclose, Peer.aclose, asyncio.runners._cancel_all_tasks = engine_closed, peer_closed, no_task
if seconds := os.environ.get("{LATE_WRITE}"):
    Timing.__init__.__kwdefaults__["late_write_s"] = float(seconds)
runpy.run_module("shadeproxy", run_name="__main__", alter_sys=True)
"""
PROGRAM = (COPY, "-c", _TEXT)


def assert_ends_quiescent(proxy: Served) -> None:
    """Stop a proxy if it runs. Raises AssertionError if anything was under way at its end."""
    assert proxy.process is not None
    if proxy.process.poll() is None:
        status = proxy.stop()
        assert status == 0, f"{status}: {proxy.log.read_text()[-3000:]}"
