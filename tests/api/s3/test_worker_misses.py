"""A miss that a worker fetches has the same effects on clients and cache as a miss of one process."""

from typing import Any

import pytest

from tests.support.s3.cases import CASES, SMALL, Case, head, short
from tests.support.s3.fetching import FetchingWorker, fetching
from tests.support.s3.scripted import Answered, Setup, set_up

pytestmark = pytest.mark.timeout(60)


def seen_by_client(answer: Answered) -> Answered:
    """Return the parts of an answer that are the same for a worker and for one process.

    A relayed request may find the page on its way, so "coalesced" counts as "origin". The body of an answer
    that was cut is left out.
    """
    fields = tuple(
        (name, b"origin" if (name, value) == (b"x-shade-cache", b"coalesced") else value)
        for name, value in answer.fields
    )
    return answer._replace(fields=fields, body=b"" if answer.cut else answer.body)


async def run(setup: Setup, case: Case, worker: FetchingWorker | None = None, twice: bool = False) -> Any:
    """Send the requests of ``case`` to the worker, or else to the proxy. Return their effects: the answers,
    the cached object, the requests at the origin, and the statistics.

    With ``twice``, the origin gives its first answer twice.
    """
    await setup.warm(2)
    if worker is not None:
        await worker.warm(2)
    answers = [case.answers[0], *case.answers] if twice else case.answers
    setup.server.scripts |= {"/b/k": list(answers), "HEAD /b/k": [[head(SMALL)]]}
    seen: dict[str, Any] = {"answers": []}
    for fields in case.asks:
        client = await (worker or setup).client()
        answer = await client.get("/b/k", *fields)
        seen["answers"].append(seen_by_client(answer))
        if "Connection: close" in fields:
            seen["closed"] = await client.reader.read() == b""
        elif not answer.cut:
            assert (await client.get("/b/warm")).body == b"warm"
        await (worker or setup).settle()
    seen["cached"] = await setup.cached("/b/k")
    seen["asked"] = setup.server.asked
    counted = setup.counted()
    bucket = counted["buckets"]["b"]
    seen["counted"] = {name: bucket[name] for name in ("requests", "bytes", "hits_ram", "bypass")}
    seen["gets"] = counted["gets"]
    return seen


# Cases in which the worker cannot keep the first answer, so that the coordinator sends the request again.
SHIFTED = {
    "two pages", "three pages", "pages one by one", "cut after the head, right", "cut after the head, wrong",
}  # fmt: skip
"""The names of cases in which the origin must give its first answer twice, to the worker and to the
coordinator.
"""
ASKED_TWICE = SHIFTED | {
    "200 for a range", "204", "304", "403", "404", "404 without a body",
    "412", "500 always", "503 for long", "chunked",
    "chunked, apart", "control characters", "dead always", "empty", "known, changed", "known, gone",
    "known, other version under its tag", "no length", "no tag", "weak tag",
    "wrong always, a part of it",
}  # fmt: skip
COUNTED_TWICE = {"wrong always, a part of it"}
UNPROVEN = {"cut, right", "cut, wrong"}
"""Cases in which the client's answer ends early. The worker has the only checksum of the bytes that the
client got, so no other process can continue the answer.
"""


def is_with_one_repeated(asked: list[Any], once: list[Any]) -> bool:
    return any(
        asked[:n] + asked[n + 1 :] == once for n in range(1, len(asked)) if asked[n][:3] == asked[n - 1][:3]
    )


@pytest.mark.parametrize("name", CASES)
async def test_a_miss_of_a_worker_looks_as_one_of_one_process(tmp_path, name):
    case = CASES[name]
    async with set_up(tmp_path / "one", by_callbacks=True, **case.settings) as setup:
        alone = await run(setup, case)
    async with (
        set_up(tmp_path / "worker", by_callbacks=True, **case.settings) as setup,
        fetching(setup) as worker,
    ):
        seen = await run(setup, case, worker, twice=name in SHIFTED)
    assert case.started is None or len(worker.begun) == case.started
    if name in UNPROVEN:
        assert seen["answers"] == [alone["answers"][0]._replace(body=b"", cut=True)]
        assert seen["cached"] == {}
        return
    same = {"answers", "cached"} if case.is_timed else {"answers", "cached", "closed", "counted", "gets"}
    if name in COUNTED_TWICE:
        same.remove("gets")
    for key in same & alone.keys():
        assert seen[key] == alone[key], (key, short(seen[key])[:600], short(alone[key])[:600])
    if case.is_timed:
        return
    if name in ASKED_TWICE:
        assert is_with_one_repeated(seen["asked"], alone["asked"]), (seen["asked"], alone["asked"])
    else:
        assert seen["asked"] == alone["asked"]
