"""Batch and locate calls read in the namespace that they name, with that namespace's credentials.

A call that names none reads in the proxy's own namespace.
"""

import json

import pytest

from shadeproxy.core.types import SHARED, ObjectRef, Upstream
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.origin.memory import MemoryOrigin

TEAM = Upstream("client:a")


class Accounts:
    """An origin with two accounts, the proxy's own and another one. Each account has its own bucket names."""

    def __init__(self) -> None:
        self.of = {SHARED: MemoryOrigin(), TEAM: MemoryOrigin()}

    def head(self, ref, *, upstream=SHARED):
        return self.of[upstream].head(ref, upstream=upstream)

    def open(self, ref, *, upstream=SHARED, **options):
        return self.of[upstream].open(ref, upstream=upstream, **options)


@pytest.fixture
async def listener(listen):
    listener = await listen(origin=Accounts(), upstreams={"": SHARED, "team-a": TEAM})
    for upstream, body in ((SHARED, b"own"), (TEAM, b"secret")):
        listener.origin.of[upstream].put("b", "k", body)
    listener.origin.of[TEAM].put("b", "only", b"secret")
    return listener


def items(*keys):
    return [{"bucket": "b", "key": key} for key in keys]


async def test_a_batch_reads_whose_bucket_it_names(listener):
    for _ in range(2):  # In the first round nothing is cached, in the second one everything.
        own = await listener.frames(items("k", "only"))
        assert [(frame.status, frame.body[:3]) for frame in own] == [(200, b"own"), (404, b'{"c')]
        team = await listener.frames(items("k", "only"), namespace="team-a")
        assert [(frame.status, frame.body) for frame in team] == [(200, b"secret"), (200, b"secret")]
    assert {upstream for _, _, upstream in listener.origin.of[TEAM].reads} == {TEAM}


async def test_locate_finds_whose_object_is_named(listener):
    await listener.frames(items("only"), namespace="team-a")
    await listener.settled()

    async def found(**named):
        status, body = await listener.call("/v1/locate", {"items": items("only"), **named})
        assert status == 200
        size = int.from_bytes(body[:4], "little")
        return len(json.loads(body[8 : 8 + size])["files"])

    assert await found(namespace="team-a") == 1
    assert await found() == 0


async def test_samples_are_read_in_the_namespace_of_their_dataset(listener):
    builder = ManifestBuilder("data", namespace="team-a")
    builder.add(ObjectRef("b", "k", "team-a"))
    listener.context.hints.put_dataset(builder.finish())
    asked = {"dataset": "data", "ids": [0]}
    for _ in range(2):
        status, body = await listener.call("/v1/batch", asked)
        assert status == 200
        assert b"secret" in body
        assert b"own" not in body
    named = {**asked, "namespace": "team-a"}
    assert "a namespace belongs to items" in (await listener.refused("/v1/batch", named))[1]
    # If the configuration has no client of the namespace any more, no caller may read the pages that are
    # cached for it.
    listener.context.upstreams = {"": SHARED}
    for path in ("/v1/batch", "/v1/locate"):
        status, text = await listener.refused(path, asked)
        assert status == 404
        assert "no client of the configuration reads in a namespace 'team-a'" in text
        assert "leave namespace out: there is only the proxy's own" in text


async def test_a_namespace_that_nobody_has_is_refused(listener):
    status, text = await listener.refused("/v1/batch", {"items": items("k"), "namespace": "x"})
    assert status == 404
    assert "name one of team-a" in text
