"""The checkup of a running proxy: it probes the origin, and warns of what it finds."""

import asyncio
import errno
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from shadeproxy.app import checkup as checkup_module
from shadeproxy.app import fitting
from shadeproxy.app.bounded_looks import BoundedLooks
from shadeproxy.app.certificate_diagnosis import CertificateFacts
from shadeproxy.app.checkup import Checkup
from shadeproxy.app.fitting import MemoryWatch
from shadeproxy.config import Settings
from shadeproxy.core.errors import NotS3, OriginAnswer, OriginUnavailable
from shadeproxy.core.types import Source
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.origin.health import OriginHealth
from shadeproxy.telemetry.stats import Stats
from tests.support.clock import ManualClock

NO_SERVER = NotS3("http://h is no S3 server: it answers", hint="set origin.endpoint to another")
REFUSED = OriginAnswer(403, "AccessDenied", "no origin credentials were found")


class Probed:
    """An origin whose probes end with these ``outcomes`` in order. The last outcome is repeated."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)

    async def probe(self) -> str:
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is not None:
            raise outcome
        return "answers"


def make(clock: ManualClock, origin: Probed, **parts: object) -> Checkup:
    settings = Settings.load(None, ["cache.ram.capacity=1 MiB", "cache.inflight=8 MiB"])
    standing = {
        "health": OriginHealth(clock),
        "providers": SimpleNamespace(),
        "media": (),
        "state": SimpleNamespace(failing=False, is_detached=lambda: False),
        "stats": SimpleNamespace(gauges={}),
        "status": lambda: "ready",
        "doubtful_jobs": no_jobs,
    }
    status = SimpleNamespace(settings=settings, memory=MemoryWatch(), needs_restart=(), reload_error="")
    return Checkup(status, origin=origin, clock=clock, **(standing | parts))


async def no_jobs() -> tuple[()]:
    return ()


@pytest.mark.parametrize(
    ("outcomes", "warnings", "lines"),
    [
        ([None], [[], []], ["origin answers"]),
        ([REFUSED], [["the origin refuses the proxy"]] * 3, ["origin refuses the proxy"]),
        (
            [REFUSED, None],
            [["the origin refuses the proxy"], [], []],
            ["origin refuses the proxy", "origin answers"],
        ),
        (
            [NO_SERVER, NO_SERVER, REFUSED, None],
            [["the server at origin.endpoint is no S3 server"]] * 2 + [["the origin refuses the proxy"], []],
            ["origin is no S3 server", "origin refuses the proxy", "origin answers"],
        ),
        (
            [OriginUnavailable("down"), NO_SERVER, OriginUnavailable("down"), None],
            [
                ["the origin does not answer"],
                ["the server at origin.endpoint is no S3 server"],
                ["the origin does not answer"],
                [],
            ],
            ["origin does not answer", "origin is no S3 server", "origin does not answer", "origin answers"],
        ),
        (
            [OriginUnavailable("down"), REFUSED, None],
            [["the origin does not answer"], ["the origin refuses the proxy"], []],
            ["origin does not answer", "origin refuses the proxy", "origin answers"],
        ),
    ],
)
async def test_a_ready_proxy_warns_of_what_its_origin_says_until_it_says_otherwise(
    outcomes, warnings, lines, capfd
):
    clock, found, enough = ManualClock(), list[list[str]](), asyncio.Event()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        found.append(checkup.warnings())
        if len(found) == len(warnings):
            enough.set()
            await asyncio.get_running_loop().create_future()

    clock.sleep = sleep
    checkup = make(clock, Probed(*outcomes))
    watch = asyncio.create_task(checkup.watch())
    await enough.wait()
    watch.cancel()
    assert found == warnings
    printed = capfd.readouterr()
    told = [line for line in (printed.out + printed.err).splitlines() if "origin" in line]
    assert len(told) == len(lines)
    assert all(text in line for text, line in zip(lines, told, strict=True))


class Odd:
    """A tier, or an origin, whose first calls raise errors that no code expects. ``failures`` is their
    number.
    """

    def __init__(self, failures: int) -> None:
        self.failures, self.asked = failures, 0
        self.name, self.disabled_reason, self.limit_bytes, self.capacity_bytes = "disk", "", 1, 1
        self.erasures = SimpleNamespace(any_unmarked=False, owed=0)

    def fail(self) -> None:
        self.asked += 1
        if self.asked <= self.failures:
            raise OSError(errno.EMFILE, "Too many open files")

    def is_detached(self) -> bool:
        self.fail()
        return True

    async def probe(self) -> str:
        self.fail()
        return "answers"


async def test_nothing_that_goes_wrong_ends_the_watch(monkeypatch, capfd):
    """No error in one of the looks, or in another part of the proxy, ends the watch or the other looks."""
    clock, passed = ManualClock(), asyncio.Semaphore(0)
    go_on = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        passed.release()
        await go_on.acquire()

    def broken() -> None:
        raise RuntimeError("no memory here")

    clock.sleep = sleep
    tier, origin = Odd(2), Odd(3)
    checkup = make(clock, origin, media=(Medium(tier, Source.DISK),))
    monkeypatch.setattr(fitting, "memory_limit", broken)
    watch = asyncio.create_task(checkup.watch())
    for _ in range(4):
        async with asyncio.timeout(10):
            await passed.acquire()
        go_on.release()
    assert checkup.warnings() == ["the directory of tier disk was deleted"]
    assert origin.asked == 4
    monkeypatch.undo()
    async with asyncio.timeout(10):
        await passed.acquire()
    watch.cancel()
    printed = "".join(capfd.readouterr())
    assert printed.count("Too many open files") == 2, "once for each of the two"
    assert printed.count("no memory here") == 1
    assert "origin answers" in printed


async def test_a_ready_proxy_warns_of_a_certificate_that_has_expired():
    clock = ManualClock()
    tls = SimpleNamespace(facts=lambda now_s: CertificateFacts(now_s - 1.0, now_s))
    assert not make(clock, Probed(None)).warnings()
    (warning,) = make(clock, Probed(None), tls=tls).warnings()
    assert warning.startswith("the TLS certificate of s3.listen expired on ")


async def test_a_report_asks_a_tier_for_its_bytes_only_on_the_event_loop():
    """A tier that is asked for its bytes first frees released records, as it does for each page that it
    takes. If a thread did that at the same time, two pages could get one place.
    """
    asked = []

    class Tier(Odd):
        used_bytes = property(lambda _: asked.append(threading.get_ident()) or 0)

    tier, clock = Tier(0), ManualClock()
    tier.name = "ram"
    health = OriginHealth(clock)
    stats = Stats(origin_health=health.as_json)
    checkup = make(
        clock, Probed(None), media=(Medium(tier, Source.DISK),), health=health, stats=stats, providers={}
    )
    await checkup.report()
    assert asked == [threading.get_ident()]


async def test_the_doctor_and_the_watch_do_not_look_at_a_disk_that_hangs():
    """A look at such a disk would hang too, and with it the doctor, and the probes of the origin."""
    tier, clock, busy_s = Odd(0), ManualClock(), 9.0
    tier.name, tier.used_bytes = "disk", 0
    health = OriginHealth(clock)
    media = (Medium(tier, Source.DISK, busy_s=lambda: busy_s),)
    checkup = make(
        clock,
        Probed(None),
        media=media,
        health=health,
        stats=Stats(origin_health=health.as_json),
        providers={},
    )
    assert checkup.warnings() == []
    busy_s = 12.0
    assert checkup.warnings() == ["the disk of tier disk hangs"]
    report = await checkup.report()
    assert tier.asked == 0
    assert [finding["name"] for finding in report["findings"] if "tier" in finding["name"]] == [
        "disk of tier disk hangs"
    ]
    assert not report["healthy"]


async def test_a_disk_that_hangs_unnoticed_holds_up_neither_the_doctor_nor_the_watch(monkeypatch):
    """An operation counts as one that hangs only after 10 s, and an idle disk has no operations."""
    monkeypatch.setattr(checkup_module, "BoundedLooks", partial(BoundedLooks, 0.05))
    released, looks = threading.Event(), []

    class Hanging(Odd):
        def is_detached(self):
            looks.append(self)
            released.wait(30)
            return False

    tier, clock = Hanging(0), ManualClock()
    tier.name, tier.used_bytes = "disk", 0
    health = OriginHealth(clock)
    checkup = make(
        clock,
        Probed(None, None),
        media=(Medium(tier, Source.DISK, busy_s=lambda: 0.0),),
        health=health,
        stats=Stats(origin_health=health.as_json),
        providers={},
    )
    try:
        for _ in range(2):
            report = await asyncio.wait_for(checkup.report(), 5)
        assert "disk of tier disk hangs" in {finding["name"] for finding in report["findings"]}
        assert len(looks) == 2, "one look of each kind"
    finally:
        released.set()
