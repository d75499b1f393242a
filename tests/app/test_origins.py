"""The origin that the composition root builds does what the settings of `[origin]` say."""

import pytest

from shadeproxy.app.origins import build_origin
from shadeproxy.config import Settings
from shadeproxy.core.types import ObjectRef
from tests.support.clock import ManualClock


async def seconds_of_a_read(tmp_path, *overrides):
    (tmp_path / "b").mkdir(exist_ok=True)
    (tmp_path / "b" / "k").write_bytes(bytes(1000))
    settings = Settings.load(None, ['origin.kind="file"', f'origin.path="{tmp_path}"', *overrides])
    clock = ManualClock()
    began_s, origin = clock.now_s(), build_origin(settings, clock=clock).origin
    try:
        async with origin.open(ObjectRef("b", "k")) as reading:
            assert b"".join([chunk async for chunk in reading.chunks]) == bytes(1000)
        return clock.now_s() - began_s
    finally:
        await origin.aclose()


async def test_a_read_waits_for_nothing_by_default(tmp_path):
    assert await seconds_of_a_read(tmp_path) == 0


async def test_delay_and_bandwidth_are_those_of_the_settings(tmp_path):
    took_s = await seconds_of_a_read(tmp_path, "origin.delay=3 s", "origin.bandwidth=100 B")
    assert took_s == pytest.approx(13, abs=0.02)


@pytest.mark.parametrize("slower", ["origin.delay=3 s", "origin.bandwidth=100 B"])
async def test_no_read_goes_past_a_delay_or_a_bandwidth(slower):
    """Reads by callbacks are off if the settings have a delay or a bandwidth.

    Such reads use the connections below the wrappers, so they would bypass delay and bandwidth.
    """
    at_once, held_up = (
        build_origin(Settings.load(None, ['origin.endpoint="http://127.0.0.1:9"', *more]))
        for more in ([], [slower])
    )
    try:
        assert at_once.gets is not None
        assert held_up.gets is None
    finally:
        await at_once.origin.aclose()
        await held_up.origin.aclose()
