"""What a running proxy finds out about its origin by itself."""

import asyncio
from types import SimpleNamespace

import pytest

from shadeproxy.app.checkup import Checkup
from shadeproxy.config import Settings
from shadeproxy.core.clock import ManualClock
from shadeproxy.core.errors import OriginAnswer, OriginUnavailable
from shadeproxy.origin.health import OriginHealth

REFUSED = OriginAnswer(403, "AccessDenied", "no origin credentials were found")


class Probed:
    """An origin of which a look ends as the next of ``outcomes``, and as the last of them from then on."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)

    async def probe(self) -> str:
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is not None:
            raise outcome
        return "answers"


@pytest.mark.parametrize(
    ("outcomes", "remarks", "lines"),
    [
        ([None], [[], []], ["origin answers"]),
        ([REFUSED], [["the origin refuses the proxy"]] * 3, ["origin refuses the proxy"]),
        (
            [REFUSED, None],
            [["the origin refuses the proxy"], [], []],
            ["origin refuses the proxy", "origin answers"],
        ),
        (
            [OriginUnavailable("down"), REFUSED, None],
            [["the origin does not answer"], ["the origin refuses the proxy"], []],
            ["origin does not answer", "origin refuses the proxy", "origin answers"],
        ),
    ],
)
async def test_a_ready_proxy_remarks_what_its_origin_says_until_it_says_otherwise(
    outcomes, remarks, lines, capfd
):
    clock, found, enough = ManualClock(), list[list[str]](), asyncio.Event()

    async def sleep(_seconds: float) -> None:
        found.append(checkup.remarks())
        if len(found) == len(remarks):
            enough.set()
            await asyncio.get_running_loop().create_future()

    clock.sleep = sleep
    checkup = Checkup(
        SimpleNamespace(settings=Settings.load(None, ["cache.ram.capacity=1 MiB", "cache.inflight=8 MiB"])),
        origin=Probed(*outcomes),
        health=OriginHealth(clock),
        providers=SimpleNamespace(),
        tiers=(),
        state=SimpleNamespace(failing=False, is_detached=lambda: False),
        stats=SimpleNamespace(gauges={}),
        clock=clock,
        status=lambda: "ready",
    )
    watch = asyncio.create_task(checkup.watch())
    await enough.wait()
    watch.cancel()
    assert found == remarks
    printed = capfd.readouterr()
    told = [line for line in (printed.out + printed.err).splitlines() if "origin" in line]
    assert len(told) == len(lines)
    assert all(text in line for text, line in zip(lines, told, strict=True))
