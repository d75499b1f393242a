"""A miss has the same effects by callbacks as by a task, for clients, cache, origin and statistics."""

from typing import Any

import pytest

from tests.support.s3.cases import CASES, SMALL, Case, head, short
from tests.support.s3.scripted import Setup, set_up


async def run(setup: Setup, case: Case) -> dict[str, Any]:
    """Send the requests of ``case``. Return their effects: the answers, the cached object, the requests at
    the origin, and the statistics.
    """
    await setup.warm(2)
    setup.server.scripts |= {"/b/k": list(case.answers), "HEAD /b/k": [[head(SMALL)]]}
    seen: dict[str, Any] = {"answers": []}
    for fields in case.asks:
        client = await setup.client()
        seen["answers"].append(await client.get("/b/k", *fields))
        if "Connection: close" in fields:
            seen["closed"] = await client.reader.read() == b""
        elif not seen["answers"][-1].cut:
            assert (await client.get("/b/warm")).body == b"warm"
        await setup.settle()
    seen["cached"] = await setup.cached("/b/k")
    seen["asked"] = setup.server.asked
    seen["counted"] = setup.counted()
    return seen


@pytest.mark.parametrize("name", CASES)
async def test_both_ways_of_a_miss_look_alike(tmp_path, name):
    case = CASES[name]
    async with set_up(tmp_path / "task", by_callbacks=False, **case.settings) as setup:
        by_task = await run(setup, case)
        assert setup.started == []
    async with set_up(tmp_path / "callbacks", by_callbacks=True, **case.settings) as setup:
        by_callbacks = await run(setup, case)
        started = setup.started.count("/b/k")
    for mine, other in zip(by_callbacks["answers"], by_task["answers"], strict=True):
        if mine.cut and other.cut:  # The arrivals decide how much of the body comes.
            short_body, long_body = sorted((mine.body, other.body), key=len)
            assert long_body.startswith(short_body)
    for seen in (by_task, by_callbacks):
        seen["answers"] = [one._replace(body=b"") if one.cut else one for one in seen["answers"]]
    if case.asks_again:
        asked, whole = by_callbacks.pop("asked"), ("GET", "/b/k", "", "")
        assert asked == [whole] * len(by_task.pop("asked"))
        for seen in (by_task, by_callbacks):
            seen["counted"]["gets"] = seen["counted"]["gets"][0]  # A task does not count bytes that are held.
    if case.is_timed:
        by_task = {key: by_task[key] for key in ("answers", "cached")}
    for key, value in by_task.items():
        assert by_callbacks[key] == value, (key, short(by_callbacks[key]), short(value))
    assert started == case.started if case.started is not None else started
