"""A running proxy probes its origin only while no request shows whether the origin answers."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace

import pytest

from shadeproxy.app import checkup
from shadeproxy.app.checkup import Checkup
from shadeproxy.app.fitting import MemoryWatch
from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError, OriginAnswer, OriginThrottled, OriginUnavailable
from shadeproxy.origin.health import OriginHealth
from shadeproxy.telemetry.stats import Stats
from tests.support.clock import ManualClock


async def no_jobs() -> tuple[()]:
    return ()


DOWN = OriginUnavailable("connection refused")


class World:
    """A checkup, and its origin. Time passes only by ``pass_by``.

    ``outcome``: the error that each probe raises; None if probes succeed.
    ``silent``: whether probes get no answer at all.
    ``probed_s``: the times of the probes.
    """

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.health = OriginHealth(self.clock)
        self.outcome: Exception | None = None
        self.silent = False
        self.on_probe: list[Callable[[], object]] = []
        self.probed_s: list[float] = []
        self._asleep: list[tuple[float, asyncio.Event]] = []
        self.clock.sleep = self._sleep
        settings = Settings.load(None, ["cache.ram.capacity=1 MiB", "cache.inflight=8 MiB"])
        self.checkup = Checkup(
            SimpleNamespace(settings=settings, memory=MemoryWatch(), needs_restart=(), reload_error=""),
            origin=self,
            health=self.health,
            providers={},
            media=(),
            state=SimpleNamespace(failing=False, is_detached=lambda: False),
            stats=Stats(origin_health=self.health.as_json),
            clock=self.clock,
            status=lambda: "ready",
            doubtful_jobs=no_jobs,
        )

    async def probe(self) -> str:
        self.probed_s.append(self.clock.monotonic_s())
        for call in self.on_probe:
            call()
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.outcome is not None:
            raise self.outcome
        return "answers"

    async def settle(self) -> None:
        """Wait until the checkup sleeps."""
        async with asyncio.timeout(20):
            while not self._asleep:
                await asyncio.sleep(0.001)

    async def pass_by(self, seconds: float, traffic=None) -> None:
        """Let this time pass, in steps of a second. After each step, call ``traffic``, if given."""
        for _ in range(round(seconds)):
            await self.settle()
            self.clock.advance(1.0)
            if traffic is not None:
                traffic()
            due = [one for one in self._asleep if one[0] <= self.clock.monotonic_s()]
            for one in due:
                self._asleep.remove(one)
                one[1].set()
        await self.settle()

    async def _sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._asleep.append((self.clock.monotonic_s() + seconds, woken))
        await woken.wait()

    @asynccontextmanager
    async def watched(self):
        watch = asyncio.create_task(self.checkup.watch())
        await self.settle()
        yield
        watch.cancel()


@pytest.fixture
def world():
    return World()


def gaps_s(times):
    return [after - before for before, after in pairwise(times)]


async def test_an_origin_that_dies_while_no_client_reads_is_down_within_16_seconds(world):
    assert world.health.answering is None
    async with world.watched():
        assert world.health.answering is True
        await world.pass_by(3600)
        assert world.health.answering is True
        assert len(world.probed_s) == world.health.as_json()["probes"] == 241
        world.outcome = DOWN
        await world.pass_by(16)
        assert world.health.answering is False
        assert world.checkup.warnings() == ["the origin does not answer"]
        world.outcome = None
        await world.pass_by(16)
        assert world.health.answering is True
        assert min(gaps_s(world.probed_s)) >= 15.0


async def test_a_directory_that_goes_away_is_an_origin_that_is_down(world):
    """The probe of a "file" origin then raises ConfigError."""
    async with world.watched():
        await world.pass_by(60)
        assert world.health.answering is True
        world.outcome = ConfigError("origin.path = '/data' is not a directory")
        await world.pass_by(16)
        assert world.health.answering is False
        finding = (await world.checkup.report())["findings"][0]
        assert finding["name"] == "origin unreachable"
        assert "origin.path = '/data' is not a directory" in finding["cause"]


async def test_nothing_is_asked_while_requests_show_that_the_origin_answers(world):
    async with world.watched():
        await world.pass_by(600, world.health.answered)
        assert len(world.probed_s) == 1
        # When requests are no longer answered, the next probe comes within 16 s.
        world.outcome = DOWN
        await world.pass_by(16)
        assert len(world.probed_s) == 2
        assert world.health.answering is False


async def test_rare_requests_delay_the_next_probe_and_no_more(world):
    async with world.watched():
        seconds = iter(range(1_000_000))
        await world.pass_by(600, lambda: next(seconds) % 20 or world.health.answered())
        assert 25 <= len(world.probed_s) <= 32
        assert min(gaps_s(world.probed_s)) >= 15.0
        assert max(gaps_s(world.probed_s)) <= 31.0


@pytest.mark.parametrize("error", [DOWN, OriginThrottled("503 SlowDown")])
async def test_an_origin_that_fails_requests_is_asked_no_more_often_than_any_other(world, error):
    async with world.watched():
        world.outcome = DOWN
        await world.pass_by(600, lambda: world.health.gave_up(error))
        assert len(world.probed_s) == 41
        assert min(gaps_s(world.probed_s)) >= 15.0


async def test_an_origin_that_never_answers_is_never_said_to_be_up(world, monkeypatch):
    monkeypatch.setattr(checkup, "_PROBE_S", 0.01)
    world.silent = True
    shown = []
    world.on_probe.append(lambda: shown.append(world.health.answering))
    async with world.watched():
        assert shown == [None]
        await world.pass_by(60, lambda: shown.append(world.health.answering))
    assert set(shown[1:]) == {False}
    assert world.health.failure.kind == "DeadlineExceeded"
    assert checkup._PROBE_S < checkup._AGAIN_S


async def test_a_request_that_was_answered_shows_more_than_the_silence_after_a_probe(world, monkeypatch):
    """An origin answers if it answers requests during a probe, even if the probe gets no answer.

    Some origins answer reads, but not ListBuckets, which is the probe.
    """
    monkeypatch.setattr(checkup, "_PROBE_S", 0.01)
    world.silent = True
    world.on_probe += [lambda: world.clock.advance(1.0), world.health.answered]
    async with world.watched():
        assert world.health.answering is True
        assert world.health.failure is None


async def test_what_the_doctor_finds_is_known_at_once_and_needs_no_second_probe(world):
    async with world.watched():
        await world.pass_by(10)
        world.outcome = DOWN
        report = await world.checkup.report()
        assert report["findings"][0]["name"] == "origin unreachable"
        assert world.health.answering is False
        await world.pass_by(14)
        assert len(world.probed_s) == 2
        world.outcome = None
        report = await world.checkup.report()
        assert report["facts"]["probe"] == "answers"
        assert world.checkup.warnings() == []


async def test_a_refusal_is_asked_about_until_it_ends_whatever_requests_show(world):
    world.outcome = OriginAnswer(403, "SignatureDoesNotMatch", "no")
    async with world.watched():
        await world.pass_by(30, world.health.answered)
        assert len(world.probed_s) == 3
        assert world.health.refusal.kind == "SignatureDoesNotMatch"
        assert world.checkup.warnings() == ["the origin refuses the proxy"]
        world.outcome = None
        await world.pass_by(15, world.health.answered)
        assert world.checkup.warnings() == []


async def test_an_origin_that_begins_to_refuse_under_load_is_shown(world):
    refused = OriginAnswer(403, "ExpiredToken", "the token has expired")
    async with world.watched():
        await world.pass_by(60, world.health.answered)
        assert len(world.probed_s) == 1
        world.outcome = refused
        await world.pass_by(30, lambda: world.health.gave_up(refused))
        assert len(world.probed_s) in (2, 3)
        assert world.checkup.warnings() != []


async def test_the_log_says_each_change_once(world, capfd):
    async with world.watched():
        for outcome in (None, DOWN, None):
            world.outcome = outcome
            await world.pass_by(120)
    printed = "".join(capfd.readouterr())
    told = [line for line in printed.splitlines() if "origin" in line]
    assert ["origin answers" in line for line in told] == [True, False, True]
