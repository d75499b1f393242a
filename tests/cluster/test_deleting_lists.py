"""A DeleteObjects whose keys have several owners, one of which gives no answer."""

import base64
import hashlib
from contextlib import asynccontextmanager

import pytest

from shadeproxy.core.errors import OriginUnavailable, OutcomeUnknown
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.relaying import cluster

OWN = ObjectRef("b", "a-own")


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), OriginUnavailable("no way")])
async def test_the_own_objects_of_a_list_without_an_outcome_are_not_cached_for_a_while(
    tmp_path, monkeypatch, error
):
    """The objects that this node owns are not cached for a while if the DeleteObjects has no known outcome.
    The origin may still delete them. The rule is the same for a list whose keys all have one owner.
    """
    origin = MemoryOrigin()
    origin.put("b", OWN.key, b"of a")
    origin.put("b", "b-other", b"of b")
    async with cluster(tmp_path, "a", "b", origin=origin) as (a, _):
        relaying = a.engine._past

        @asynccontextmanager
        async def silent(_request):
            raise error
            yield

        monkeypatch.setattr(
            relaying, "_inner", type("Silent", (), {"forward": staticmethod(silent), "aclose": origin.aclose})
        )
        keys = "".join(f"<Object><Key>{key}</Key></Object>" for key in (OWN.key, "b-other"))
        body = f"<Delete>{keys}</Delete>".encode()
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        answer = await a.ask("/b?delete", f"Content-MD5: {digest}", method="POST", body=body)
        assert answer.status >= 500
        assert b"others" in answer.body
        assert a.engine._versions.being_written(OWN)
        monkeypatch.undo()
        assert "b-other" not in origin.buckets["b"]
        for _ in range(2):
            assert (await a.ask(f"/b/{OWN.key}")).field(b"x-shade-cache") == b"origin"
        assert len(a.engine.cache.resident_pages()[0]) == 0
