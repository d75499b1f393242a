"""Fixtures for all tests. A test fails if code of the product blocks its event loop. It also fails if it
leaves an engine open, or if an engine was not quiescent when it was closed.

Tests of the whole product use ``serve``, which starts a real ``shadeproxy serve`` in a process of its own.
This process is a copy of another one (copied.py). With the mark ``new_interpreter`` it is started as users do
it.
"""

import faulthandler
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web_app
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from shadeproxy.engine.engine import Engine
from shadeproxy.engine.index import hash_table
from shadeproxy.hints import job_state
from shadeproxy.policy import kernels
from tests.support.released import keep_no_large_blocks, release_memory
from tests.support.served import COPIED_SERVE, SERVE, MakeServed, Served

# Examples of hypothesis have no time limit: more than 200 ms for one shows that the machine is busy, not that
# the code is wrong.
settings.register_profile(
    "any machine",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Restore Ctrl-C. In a run in the background of a script, the tests would ignore Ctrl-C, and so would all
    processes that they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "open_engine(reason): the test leaves an engine open on purpose")
    config.addinivalue_line("markers", "new_interpreter: proxies of the test are started as their users do")
    keep_no_large_blocks()
    config.stash[_STDERR] = os.dup(2)  # While a test runs, pytest puts a file in the place of stderr.


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_STDERR])


_TESTS = Path(__file__).parent
_STDERR = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Limit the time that the fixtures of a failed test may take to end.

    pytest-timeout and pytest's faulthandler have just cancelled their timers, so nothing else would end a
    fixture that hangs. The end of the test cancels this timer too.
    """
    limit_s = float(node.config.getini("faulthandler_timeout"))
    if isinstance(node, pytest.Item) and limit_s > 0:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=node.config.stash[_STDERR])


_ASKED_FOR = ("rgw", "clients", "recipes", "harness", "helm")
"""Marks of tests that need a server, many clients, much time or a big package. Such a test runs only if
``-m`` names its mark.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that need more than `make test` installs and starts."""
    marks = {mark for mark in _ASKED_FOR if mark not in config.option.markexpr}
    wanted, unwanted = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        found = unwanted if any(mark.name in marks for mark in item.iter_markers()) else wanted
        found.append(item)
    if unwanted:
        items[:] = wanted
        config.hook.pytest_deselected(items=unwanted)
    if hasattr(config, "workerinput"):  # This is a process of xdist.
        items.sort(key=_place_in_order)


_LONGEST_FIRST = ("e2e", "demo", "bench", "simulate", "sdk", "engine", "cluster", "policy", "plan", "hints")
"""Rooms (directories of tests) with long files, the longest first. Each file of other rooms takes seconds."""


def _place_in_order(item: pytest.Item) -> int:
    """Return the place of a test's room in the order in which processes of xdist run the rooms.

    Rooms with long files come first. Otherwise one process could still run a long file when the rest of them
    have nothing left to do.
    """
    room, *rest = item.path.parts[len(_TESTS.parts) :]
    if not rest:
        return 0  # These tests build packages and install them.
    return _LONGEST_FIRST.index(room) if room in _LONGEST_FIRST else len(_LONGEST_FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect no garbage while tests are collected: all their objects stay, and each round visits them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.freeze()  # Modules and tests are no garbage, and to visit all of them takes a second.
    release_memory()
    # Full rounds are short now, so they may come ten times as often. Then the engines of a file's tests do
    # not pile up.
    gc.set_threshold(700, 10, 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Collect garbage after each file, when pytest has released the fixtures of the file's last test."""
    _note_running(item, "began")
    outcome = yield
    _note_running(item, "ended")
    if nextitem is None or nextitem.path != item.path:
        release_memory()
    return outcome


def _note_running(item: pytest.Item, state: str) -> None:
    """Note the last test of this process in a file. `.ci/run` shows it if it must end a run that hangs."""
    if directory := os.environ.get("SHADEPROXY_RUNNING_TESTS"):
        process = os.environ.get("PYTEST_XDIST_WORKER", "pytest")
        note = f"{time.strftime('%H:%M:%S')} {state} {item.nodeid}\n"
        Path(directory, process).write_text(note, encoding="utf-8")


_IS_COMPILED = kernels.COMPILED and hash_table.COMPILED and job_state.COMPILED


@pytest.fixture(scope="module", params=["compiled", "interpreted"] if _IS_COMPILED else ["interpreted"])
def kernel_form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the tests of a module twice: with the compiled modules, and with Python in their place."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (kernels, hash_table, job_state):
            patch.setattr(module, "COMPILED", request.param == "compiled")
        yield request.param


@cache
def _make_blockbuster() -> BlockBuster:
    """Make the check for blocking calls, once: it wraps 58 functions, which takes half a millisecond."""
    blocked = BlockBuster("shadeproxy")
    for function in blocked.functions.values():
        # This function has an event loop of its own, in a thread that may block.
        function.can_block_in("origin/credentials.py", "_resolve")
    # This function sends pages in memory to a socket that does not block.
    blocked.functions["os.sendfile"].can_block_in("s3/sender.py", "_push")
    return blocked


@pytest.fixture(autouse=True)
def _checked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check each test as the docstring of this module says, and undo what tests leave behind.

    One fixture does all of it, because each costs every test more than what it does.
    """
    blocked = _make_blockbuster()
    blocked.activate()
    try:
        with _quiescence(request.node):
            yield
    finally:
        # Commands that run in the process of the tests configure the log.
        if structlog.is_configured():
            structlog.reset_defaults()
        # Each entry of aiohttp's cache of handlers with middlewares (up to 1,024) would keep an engine.
        web_app._cached_build_middleware.cache_clear()
        blocked.deactivate()


@contextmanager
def _quiescence(test: pytest.Item) -> Iterator[None]:
    """Fail a test that leaves an engine open, or that closes an engine with work under way or
    wrong accounts.
    """
    left_open, restless = list[Engine](), list[Engine]()
    make, close = Engine.__init__, Engine.aclose

    def made(engine: Engine, *args: Any, **kwargs: Any) -> None:
        make(engine, *args, **kwargs)
        left_open.append(engine)

    async def closed(engine: Engine) -> None:
        await close(engine)
        if engine in left_open:
            left_open.remove(engine)
        try:
            engine.assert_quiescent()
        except AssertionError:
            restless.append(engine)  # Work under way may still end during the test.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "__init__", made)
        patch.setattr(Engine, "aclose", closed)
        yield
    for engine in restless:
        engine.assert_quiescent()
    assert not left_open or test.get_closest_marker("open_engine"), "an engine was not closed"


@pytest.fixture
def serve(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeServed]:
    """Yield a function that starts proxies. Its keyword ``cache__ram__capacity="1 MiB"``, for example, sets
    cache.ram.capacity.
    """
    yield from _serving(tmp_path, request)


@pytest.fixture(scope="module")
def serve_for_module(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[MakeServed]:
    """Yield a function like that of ``serve``, whose proxies run for all tests of a module."""
    yield from _serving(tmp_path_factory.mktemp("serve"), request)


_NEEDS_TOKEN = "anonymous = false"
"""The setting with which a proxy does not start without control.token. If the configuration file names no
token, ``serve`` makes one.
"""


def _serving(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeServed]:
    running: list[Served] = []
    usual = SERVE if request.node.get_closest_marker("new_interpreter") else COPIED_SERVE

    def start(
        config: Path | None = None,
        environment: dict[str, str] | None = None,
        program: tuple[str, ...] = usual,
        **settings: str,
    ) -> Served:
        name = tmp_path / f"proxy{len(running)}"
        name.mkdir()
        values = {
            "s3.listen": "127.0.0.1:0",
            "control.listen": "127.0.0.1:0",
            "cache.ram.path": str(name / "ram"),
            "cache.ram.capacity": "32 MiB",
            "cache.disk.path": str(name / "disk"),
            "cache.disk.capacity": "0",
            "cache.disk.min_free": "0",
            "state.path": str(name / "state"),
            "telemetry.log_format": "json",
        } | {key.replace("__", "."): value for key, value in settings.items()}
        token = ""
        if config is not None and _NEEDS_TOKEN in (text := config.read_text()) and "[control]" not in text:
            token = "of-the-control-side"
            (name / "token").write_text(token)
            values["control.token"] = f"file:{name / 'token'}"
        arguments = [item for key, value in values.items() for item in ("--set", f"{key}={value}")]
        if config is not None:
            arguments = ["--config", str(config), *arguments]
        served = Served(arguments, environment or {}, name / "log", token=token, program=program)
        running.append(served)
        served.start()
        return served

    yield start
    for served in running:
        served.stop(signal.SIGKILL)


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """Yield a directory on a tmpfs without huge pages, because sendfile is safe there only."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("this machine has no /dev/shm")
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="shadeproxy-test-"))
    yield path
    shutil.rmtree(path)
