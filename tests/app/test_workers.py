"""A worker that is still starting ends with its coordinator, whether the coordinator dies or
stops in order.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from shadeproxy.app.channel import ALIVE, CONFIRMED, END, SERVING, Channel, Opening, pack_change
from shadeproxy.app.connection_limits import ConnectionLimit
from shadeproxy.app.limits import ClientConnections
from shadeproxy.app.peer_listening import PeerListening
from shadeproxy.app.reloadable import build_reloadable
from shadeproxy.app.worker import WorkerProcess
from shadeproxy.app.worker_openers import NOTHING_OPENED
from shadeproxy.app.workers import CRADLE, Workers
from shadeproxy.config import Settings
from shadeproxy.core.clock import SystemClock
from shadeproxy.engine.index.columns import Share
from shadeproxy_bench.machine import is_alive

_COORDINATOR = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], "0", str(os.getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_it_does_not_outlive_its_coordinator(tmp_path):
    package = tmp_path / "shadeproxy" / "app"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "worker.py").write_text("import time\nprint(flush=True)\ntime.sleep(600)\n")
    coordinator = subprocess.Popen(
        [sys.executable, "-c", _COORDINATOR, CRADLE],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    )
    with coordinator:
        worker = int(coordinator.stdout.readline())
        assert is_alive(worker)
        coordinator.kill()
    deadline = time.monotonic() + 60
    while is_alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_collector_rests_only_while_the_worker_imports_its_modules(tmp_path):
    package = tmp_path / "shadeproxy" / "app"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    module = "import gc\nprint(gc.isenabled())\ndef main(): print(gc.isenabled())\n"
    (package / "worker.py").write_text(module)
    command = [sys.executable, "-c", CRADLE, "0", str(os.getpid())]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    assert subprocess.check_output(command, env=environment, cwd=tmp_path) == b"False\nTrue\n"


def test_a_worker_loads_nothing_of_the_coordinator():
    code = "import sys, shadeproxy.app.worker; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert "shadeproxy.api.s3.relay" in loaded
    others = ("app.proxy", "app.workers", "api.control", "hints.registry", "cluster.membership")
    assert not loaded & {f"shadeproxy.{name}" for name in others}


def test_it_ends_when_its_coordinator_is_gone_already():
    assert subprocess.run([sys.executable, "-c", CRADLE, "0", "1"], check=False).returncode == 1


def workers_of(share):
    """Return the ``Workers`` of a proxy of two processes. Their reports are dropped."""
    settings = Settings.load(None, ["s3.workers=2"])
    return Workers(
        settings,
        build_reloadable(settings),
        (),
        share=share,
        on_requests=lambda _rows: None,
        on_reads=lambda *_: None,
        certificate=None,
    )


def limit():
    return ConnectionLimit(ClientConnections(100, 50), 2, clock=SystemClock())


def frame(content):
    return len(content).to_bytes(4, "little") + content


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture
def worker(listener):
    """Yield a worker that would accept clients from ``listener``. It runs in this process."""
    settings, share = Settings(), Share.create()
    opening = Opening(
        settings,
        build_reloadable(settings),
        (),
        share.descriptor,
        os.dup(listener.fileno()),
        "\0nobody",
        limit().of_worker(1),
    )
    yield WorkerProcess(opening)
    os.close(share.descriptor)


async def test_told_to_end_before_it_listens_it_takes_nobody(worker, listener):
    """A worker that must end before it listens accepts no client.

    It would have to cut the client off. The next process accepts a client that still waits.
    """
    coordinator, end = socket.socketpair()
    with coordinator, socket.create_connection(listener.getsockname()) as client:
        client.sendall(b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n")
        coordinator.sendall(frame(END))
        await worker.run(end)
        for _ in range(20):
            await asyncio.sleep(0)
        taken, _ = listener.accept()
        with taken:
            assert taken.recv(100).startswith(b"GET /b/k ")


async def test_settings_that_come_while_it_starts_are_confirmed(worker, monkeypatch):
    attach = Channel.attach

    async def returns_late(channel, end):
        await attach(channel, end)
        await asyncio.sleep(0.05)

    monkeypatch.setattr(Channel, "attach", returns_late)
    coordinator, end = socket.socketpair()
    with coordinator:
        coordinator.setblocking(False)
        coordinator.sendall(frame(pack_change(build_reloadable(Settings()))))
        running = asyncio.create_task(worker.run(end))
        said = b""
        while frame(SERVING) not in said:
            said += await asyncio.get_running_loop().sock_recv(coordinator, 100)
        assert said == frame(CONFIRMED) + frame(SERVING)
        coordinator.sendall(frame(END))
        await running


async def test_it_gives_signs_of_life_while_its_turns_are_slow(worker, monkeypatch):
    """The coordinator kills a worker that is silent. A slow worker must not look like one."""
    monkeypatch.setattr("shadeproxy.app.worker._FLUSH_S", 0.3)
    turns, flush = [], worker._reader.flush
    monkeypatch.setattr(worker._reader, "flush", lambda: turns.append(flush()))
    coordinator, end = socket.socketpair()
    with coordinator:
        coordinator.setblocking(False)
        running = asyncio.create_task(worker.run(end))
        said = b""
        while said.count(frame(ALIVE)) < 3:
            said += await asyncio.get_running_loop().sock_recv(coordinator, 100)
        assert len(turns) < 10
        coordinator.sendall(frame(END))
        await running


async def test_whom_it_accepts_while_it_ends_it_asks_nobody_for(worker, listener):
    coordinator, end = socket.socketpair()
    with coordinator:
        running = asyncio.create_task(worker.run(end))
        while not worker._servers:
            await asyncio.sleep(0)
        coordinator.sendall(frame(END))
        while not worker._over.is_set():
            await asyncio.sleep(0)
        late = worker._protocol()
        await asyncio.get_running_loop().create_connection(lambda: late, *listener.getsockname())
        late.data_received(b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n")
        assert late._opening is None
        await running


async def test_a_worker_that_cannot_be_started_is_tried_again(monkeypatch):
    """A worker that could not start, because the machine lacked processes or descriptors, is started again.

    A failed attempt leaves no descriptor open.
    """
    monkeypatch.setattr("shadeproxy.app.workers._RESTART_S", 0.01)
    share, tried, environments = Share.create(), [], []
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "4096")
    workers = workers_of(share)

    async def refuse(*_args, env, **_options):
        environments.append(env)
        tried.append(len(await asyncio.to_thread(os.listdir, "/proc/self/fd")))
        if len(tried) == 3:
            workers._stopping = True
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with socket.create_server(("127.0.0.1", 0)) as listener, capture_logs() as logs:
        await workers._keep(listener, limit(), 1)
    assert len(tried) == 3
    assert tried[2] <= tried[0] + 1, "descriptors of failed tries are closed"
    assert [log["error"] for log in logs] == ["Resource temporarily unavailable"] * 3
    # With these settings glibc keeps the freed memory of uploads. A setting of the user is not replaced.
    limits = {"MALLOC_MMAP_THRESHOLD_": str(8 * 1024**2), "MALLOC_TRIM_THRESHOLD_": "4096"}
    assert environments == [dict(os.environ) | limits] * 3
    os.close(share.descriptor)


async def test_a_proxy_that_ends_while_a_worker_of_its_cluster_starts_ends_in_order(monkeypatch):
    """The proxy ends, and closes its listeners, while it prepares the start of a worker.

    The worker gets no closed descriptor. Its start fails, or the worker ends at once.
    """
    passed = []
    workers = workers_of(Share.create())
    listener, others = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    workers._peers = PeerListening("a", ("secret",), others, None, None, None, limit(), lambda _rows: None)

    class Stopping:
        async def open(self, _kill):
            workers._stopping = True
            listener.close()
            others.close()
            return NOTHING_OPENED

    async def refuse(*_args, pass_fds, **_options):
        passed.extend(pass_fds)
        raise BlockingIOError("Resource temporarily unavailable")

    workers._openers = Stopping()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    await workers._keep(listener, limit(), 1)
    assert min(passed) >= 0


async def test_a_worker_that_starts_slowly_is_not_ended_by_a_change(monkeypatch):
    """A change of the settings waits for a worker that still starts, and does not end it.

    Otherwise each change would end the worker again, and its start would never be over.
    """
    monkeypatch.setattr("shadeproxy.app.workers._CONFIRM_S", 0.05)
    monkeypatch.setattr("shadeproxy.app.workers._START_S", 0.5, raising=False)
    share, execute = Share.create(), asyncio.create_subprocess_exec
    workers = workers_of(share)

    async def start_slowly(*_arguments, pass_fds, **_options):
        return await execute("sleep", "60", pass_fds=pass_fds)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    with socket.create_server(("127.0.0.1", 0)) as listener, capture_logs() as logs:
        keeping = asyncio.create_task(workers._keep(listener, limit(), 1))
        while not workers.numbers:
            await asyncio.sleep(0)
        changing = asyncio.create_task(workers.adopt(workers.reloadable))
        await asyncio.sleep(0.25)
        assert not logs
        assert not changing.done()
        workers._stopping = True
        await changing  # The change does not wait for ever.
        await keeping
    assert [log["event"] for log in logs] == ["a worker does not answer and is ended"]
    os.close(share.descriptor)


@pytest.fixture
async def silent(monkeypatch):
    """Start a worker that only accepts. Yield ``Workers``, the socket by which it speaks, and the log."""
    monkeypatch.setattr("shadeproxy.app.workers._LOOK_S", 0.02)
    share, execute = Share.create(), asyncio.create_subprocess_exec
    workers = workers_of(share)
    ends = []

    async def start(*_arguments, pass_fds, **_options):
        ends.append(socket.socket(fileno=os.dup(pass_fds[0])))
        return await execute("sleep", "60")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with socket.create_server(("127.0.0.1", 0)) as listener, capture_logs() as logs:
        keeping = asyncio.create_task(workers._keep(listener, limit(), 1))
        while not workers.numbers:
            await asyncio.sleep(0)
        with ends[0]:
            yield workers, ends[0], logs
        workers._stopping = True
        for number in workers.numbers:
            os.kill(number, signal.SIGKILL)
        await keeping
    os.close(share.descriptor)


async def test_a_worker_that_falls_silent_is_ended(silent):
    workers, end, logs = silent
    end.sendall(frame(SERVING))
    for _ in range(20):
        await asyncio.sleep(0.02)
        end.sendall(frame(ALIVE))
    assert not logs
    (number,) = workers.numbers
    while workers.numbers:
        await asyncio.sleep(0.01)
    assert (logs[0]["event"], logs[0]["process"]) == ("a worker does not answer and is ended", number)


async def test_a_pause_of_the_coordinator_ends_no_worker(silent):
    """A message of a worker may be heard only after the timer, as libuv runs timers first."""
    workers, end, logs = silent
    end.sendall(frame(SERVING))
    await asyncio.sleep(0.02)
    for _ in range(5):
        time.sleep(0.2)  # noqa: ASYNC251 (longer than a worker may be silent)
        for _ in range(10):
            await asyncio.sleep(0)
        end.sendall(frame(ALIVE))
        await asyncio.sleep(0.01)
    assert (len(workers.numbers), logs) == (1, [])


async def test_a_worker_that_has_not_begun_to_serve_may_be_silent(silent):
    workers, _, logs = silent
    await asyncio.sleep(0.3)
    assert (len(workers.numbers), logs) == (1, [])


async def test_many_frames_that_come_at_once_are_not_copied_again_and_again():
    """The rest of the bytes is not copied after each frame: the time would grow with the square of their
    number.
    """
    heard, frames = [], [b"%060d" % number for number in range(4000)]
    data = b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)
    channel = Channel(heard.append, lambda: None)
    tracemalloc.start()
    try:
        channel.data_received(data[:30])
        channel.data_received(data[30:100])
        assert heard == frames[:1]
        held_bytes = tracemalloc.get_traced_memory()[0]
        channel._heard = lambda _frame: None
        channel.data_received(data[100:])
        copied_bytes = tracemalloc.get_traced_memory()[1] - held_bytes
    finally:
        tracemalloc.stop()
    # Two copies: the slice here, and the bytes before them joined to it. The rest would be a third one.
    assert copied_bytes < 2.5 * len(data)


async def test_a_change_that_is_given_up_does_not_cancel_the_confirmation(monkeypatch):
    """A stop may give a reload up while the worker that was killed has not ended. The end of the worker then
    sets the result of the confirmation, which must not be cancelled.
    """
    monkeypatch.setattr("shadeproxy.app.workers._CONFIRM_S", 0.0)
    killed, confirmed, serving = [], asyncio.get_running_loop().create_future(), asyncio.Event()
    serving.set()
    process = SimpleNamespace(pid=1, kill=lambda: killed.append(1))
    link = SimpleNamespace(serving=serving, process=process)
    waiting = asyncio.create_task(Workers._confirmed(None, confirmed, link))
    while not killed:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not confirmed.cancelled()
    confirmed.set_result(None)
