"""A look at a disk that hangs ends in time, and its late result harms nothing."""

import asyncio
import threading

import pytest

from shadeproxy.app.bounded_looks import BoundedLooks


async def test_a_look_that_hangs_is_left_and_not_repeated():
    looks, released, begun = BoundedLooks(0.05), threading.Event(), []

    def look():
        begun.append(1)
        released.wait(30)
        return "late"

    for _ in range(3):
        assert await looks.within("disk", look, "no answer") == "no answer"
    assert await looks.within("state", lambda: "seen", "no answer") == "seen"
    assert len(begun) == 1
    waiting = asyncio.create_task(BoundedLooks.within(looks, "disk", look, "no answer"))
    await asyncio.sleep(0)
    released.set()
    assert await waiting == "late"
    assert await looks.within("disk", lambda: "new", "no answer") == "new"


async def test_an_error_of_a_look_reaches_its_caller_only():
    looks = BoundedLooks()
    with pytest.raises(ZeroDivisionError):
        await looks.within("disk", lambda: 1 // 0, 0)
    assert await looks.within("disk", lambda: 1, 0) == 1
