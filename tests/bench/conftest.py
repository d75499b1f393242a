"""Fixtures that run small servers with known faults. Each server is a process of its own, like the
real ones.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from shadeproxy.demo.processes import running
from shadeproxy.demo.servers import plain_environment
from shadeproxy_bench.certificate import make_certificate
from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.server import Served, origin
from tests.support.copied_programs import _copied_programs  # noqa: F401

_FAKE = Path(__file__).parent / "fake_server.py"


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def make_origin(stack, tmp_path):
    """Return a function that runs the origin of the bench. With another ``seed`` the origin sends wrong
    bytes.
    """

    def make(name="origin", **options):
        return stack.enter_context(origin(tmp_path, name=name, **options))

    return make


@pytest.fixture
def certificate(tmp_path):
    return make_certificate(tmp_path)


@pytest.fixture
def make_fake(stack, tmp_path):
    """Return a function that runs ``fake_server.py`` with the given fault."""

    def make(fault):
        log = tmp_path / f"{fault}.log"
        command = [sys.executable, str(_FAKE), fault]
        child = stack.enter_context(running(fault, command, log=log, env=plain_environment(), piped=True))
        return Served(fault, "127.0.0.1", int(child.process.stdout.readline()), child.process.pid)

    return make


@pytest.fixture
def pieces():
    return [Piece(1000, number) for number in range(40)]


@pytest.fixture
def plan():
    """Return a function that makes a ``Planned`` row. The row's measurement returns ``found``, or raises it
    if it is an exception.
    """

    def make(found, name="a row", target=None, **more):
        def measure():
            if isinstance(found, Exception):
                raise found
            return found

        return Planned(name, "us", target or Target(1.0), "as it is", measure, **more)

    return make


@pytest.fixture
def three_rows(plan):
    """Return a suite of three rows: the first meets its target, the second misses it, and the third one
    fails.
    """

    def suite(_scale):
        yield plan(Measured(10.0, 20.0, (9.0, 11.0), (20.0, 20.0)), "fast")
        yield plan(Measured(40.0, 20.0, note="why it is slow"), "slow")
        yield plan(BenchError("wrong bytes"), "wrong")

    return suite
