"""Origins send wrong, odd or rare answers to a running proxy. For each kind of answer the client soon gets
right bytes, an S3 error or an aborted connection. The client never gets wrong bytes, the proxy caches no
wrong answer, and it logs no traceback.
"""

import http.client
import json
import time

import pytest

from tests.support.documents import block
from tests.support.served import log_of, wait_for

from .odd_origin import KINDS, LONG, PAGE, odd_origin

_MOST_S = 8.0
_WHOLE = slice(None)


@pytest.fixture(scope="module")
def origin():
    with odd_origin() as running:
        yield running


@pytest.fixture(scope="module", params=["1", "2"], ids=["one-process", "two-workers"])
def proxy(request, origin, serve_for_module):
    served = serve_for_module(
        origin__endpoint=origin.url,
        origin__credentials="anonymous",
        cache__page_size="64 KiB",
        origin__timeouts__read="1s",
        origin__retry__attempts="2",
        origin__retry__backoff="10ms",
        prefetch__enabled="false",
        s3__workers=request.param,
    )
    yield served
    assert served.process.poll() is None, "it is still there"
    assert "Traceback" not in served.log.read_text()


class Got:
    """An answer that a client received. ``kind`` is "right", "wrong", "error", "cut" or "late"."""

    def __init__(self, proxy, method: str, key: str, **headers: str) -> None:
        self.status, self.fields, self.body, self.cut = 0, {}, b"", ""
        host = proxy.s3.removeprefix("http://")
        started_s = time.monotonic()
        connection = http.client.HTTPConnection(host, timeout=_MOST_S)
        try:
            connection.request(method, f"/data/{key}", headers=headers)
            answer = connection.getresponse()
            self.status = answer.status
            self.fields = {name.lower(): value for name, value in answer.getheaders()}
            try:
                self.body = answer.read()
            except http.client.IncompleteRead as error:
                self.body, self.cut = error.partial, "short"
        except (OSError, http.client.HTTPException) as error:
            self.cut = repr(error)
            if isinstance(error, TimeoutError):
                pytest.fail(f"{method} {key} hangs")
        finally:
            connection.close()
        assert time.monotonic() - started_s < _MOST_S

    def judged(self, bodies: list[bytes], span: slice) -> str:
        if self.cut:
            assert self.status in {0, 200, 206}
            return "cut"
        if self.status >= 300:
            assert self.status != 500 or b"InternalError" not in self.body or b"told to" in self.body
            assert self.body.startswith(b"<?xml"), self.body[:100]
            return "error"
        if self.status == 200 and self.body in bodies:
            return "right"
        if self.status == 206 and self.body in [body[span] for body in bodies]:
            return "right"
        return f"wrong ({self.status}, {len(self.body)} bytes)"


SPANS = (slice(0, 100), slice(500, 700), slice(PAGE - 50, PAGE + 50), slice(2 * PAGE + 5, 2 * PAGE + 505))


@pytest.mark.parametrize("name", KINDS)
def test_no_wrong_byte_reaches_a_client(proxy, origin, name):
    kind = KINDS[name]
    judged = [Got(proxy, "GET", name).judged(kind.bodies, _WHOLE) for _ in range(3)]
    assert set(judged) <= kind.outcome, judged
    for number, span in enumerate(SPANS):
        if not kind.bodies or span.stop <= len(kind.bodies[0]):
            read_range(proxy, name, f"{name}.{number}", span)
    if not kind.keeps:
        assert Got(proxy, "GET", name).fields.get("x-shade-cache") not in {"ram", "disk"}
    ask_heads(proxy, name)


def read_range(proxy, name, unseen, span):
    """Read a range of an object that the proxy has seen before, and then a range of a new object."""
    kind = KINDS[name]
    for key in (name, unseen):
        for _ in range(2):
            got = Got(proxy, "GET", key, Range=f"bytes={span.start}-{span.stop - 1}")
            found = got.judged(kind.bodies, span)
            assert found in {"right", "error", "cut"}, (span, found)
            if kind.outcome == {"right"} and "range" not in name:
                assert found == "right", (key, span, got.status, got.body[:300])


def ask_heads(proxy, name):
    """Send HEADs. A GET that may use the same connection to the origin follows each HEAD."""
    kind = KINDS[name]
    for _ in range(3):
        head = Got(proxy, "HEAD", name)
        assert not head.body
        if kind.outcome == {"right"}:
            assert head.status == 200, (head.status, head.cut)
            length = head.fields.get("content-length")
            assert length is None or int(length) in {len(body) for body in kind.bodies}
        if kind.outcome == {"error"}:
            assert head.status >= 300 or head.cut, head.status
        if "behind" in name:
            time.sleep(0.1)  # In this time the connection idles, and the surplus answer arrives.
        assert Got(proxy, "GET", name).judged(kind.bodies, _WHOLE) in kind.outcome


def test_nothing_unexpected_is_in_the_log(proxy):
    assert not [line for line in log_of(proxy) if line.get("level") in {"error", "critical"}]


def test_there_are_as_many_kinds_as_were_tried():
    assert len(KINDS) >= 100
    assert LONG > 3 * PAGE


# ---------------------------------------------------------------------- objects that cannot be cached


@pytest.fixture
def passing(serve):
    """Run a proxy, and an origin for this proxy only that counts requests."""
    with odd_origin() as running:
        proxy = serve(
            origin__endpoint=running.url,
            origin__credentials="anonymous",
            cache__page_size="64 KiB",
            origin__retry__backoff="10ms",
        )
        yield proxy, running


@pytest.mark.parametrize("name", ["head-latin1-in-value", "etag-latin1"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_metadata_that_is_not_utf_8_is_cached(serve, name, workers):
    with odd_origin() as running:
        proxy = serve(
            origin__endpoint=running.url,
            origin__credentials="anonymous",
            cache__page_size="64 KiB",
            s3__workers=workers,
        )
        first, *others = [Got(proxy, "GET", name) for _ in range(4)]
        for got in others:
            assert got.judged(KINDS[name].bodies, _WHOLE) == "right"
            assert got.fields["x-shade-cache"] == "ram"
            assert (got.fields["etag"], got.fields.get("x-amz-meta-a")) == (
                first.fields["etag"],
                first.fields.get("x-amz-meta-a"),
            )
        assert len([asked for asked in running.asked if asked[1]]) == 1
        for number in range(6):  # By this time workers also fetch from the origin.
            assert Got(proxy, "GET", f"{name}.{number}").fields["x-shade-cache"] == "origin"
            assert Got(proxy, "GET", f"{name}.{number}").fields["etag"] == first.fields["etag"]
        assert len([asked for asked in running.asked if asked[1]]) == 7
    assert not log_of(proxy, "tier failed")


@pytest.mark.parametrize(
    "name",
    [
        "etag-weak-long-changing",
        "etag-none-short-changing",
        "chunked-long-no-etag",
        "http10-no-length-long-weak",
    ],
)
def test_each_read_of_what_cannot_be_cached_is_one_get(passing, name):
    proxy, origin = passing
    for number in range(1, 4):
        assert Got(proxy, "GET", name).judged(KINDS[name].bodies, _WHOLE) == "right"
        assert [asked[:2] for asked in origin.asked if asked[1]] == [("GET", f"data/{name}")] * number
    if "chunked" not in name and "http10" not in name:
        span = slice(100, 200)
        for number, key in enumerate((name, f"{name}.unseen"), 4):
            assert Got(proxy, "GET", key, Range="bytes=100-199").judged(KINDS[name].bodies, span) == "right"
            assert len([asked for asked in origin.asked if asked[1]]) == number
    assert proxy.stats()["totals"]["hit_ratio"] == 0


def test_what_cannot_be_cached_is_said_once(passing):
    proxy, _ = passing
    warning = "the origin sends objects that lack a strong ETag, or a length: they are not cached"
    # Only this warning must be absent. Another one may be present: that the root of this origin is no S3
    # server.
    assert warning not in proxy.get("/readyz").get("warnings", [])
    for number in range(3):
        Got(proxy, "GET", f"etag-weak-short-changing.{number}")
    assert warning in proxy.get("/readyz")["warnings"]
    (line,) = log_of(proxy, "objects cannot be cached")
    assert (line["bucket"], line["example"]) == ("data", "s3://data/etag-weak-short-changing.0")
    findings = {one["name"]: one for one in proxy.get("/v1/doctor")["findings"]}
    assert "3 answers without a strong ETag" in findings["objects without identity"]["cause"]
    assert proxy.stats()["pages"]["unidentified"] == 3


def test_an_object_that_loses_its_identity_leaves_the_cache(passing):
    """The cache drops an object whose version the origin no longer identifies. Here a gateway was put in
    front of the origin, so the cached version can no longer be checked.
    """
    proxy, _ = passing
    body = KINDS["head-utf8-in-value"].bodies[0]
    for _ in range(2):
        got = Got(proxy, "GET", "head-utf8-in-value")
    assert (got.fields["x-shade-cache"], got.body) == ("ram", body)
    odd = KINDS["etag-weak-short-changing"]
    KINDS["head-utf8-in-value"], before = odd, KINDS["head-utf8-in-value"]
    try:
        got = Got(proxy, "GET", "head-utf8-in-value", **{"Cache-Control": "no-cache"})
        assert got.judged(odd.bodies, _WHOLE) == "right"
        assert got.fields["x-shade-cache"] == "bypass"
        again = Got(proxy, "GET", "head-utf8-in-value")
        assert again.body != got.body, "each is another version, and nothing is kept"
    finally:
        KINDS["head-utf8-in-value"] = before


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("etag-weak-long-changing", 200),
        ("etag-none-short-changing", 200),
        ("chunked-short-no-etag", 200),
        ("http10-no-length-short-etag", 200),
        ("chunked-long-no-etag", 501),
    ],
)
def test_batches_stream_what_cannot_be_cached(passing, name, status):
    proxy, _ = passing
    kind, names = KINDS[name], {}
    exec(block("read_batch").replace("127.0.0.1:9001", proxy.control.removeprefix("http://")), names)
    items = [{"bucket": "data", "key": name}, {"bucket": "data", "key": name, "offset": 10, "length": 100}]
    for _ in range(2):  # The first read discovers the case, and the second one finds it known.
        whole, part = names["read_batch"](proxy.control.removeprefix("http://"), {"items": items})
        assert whole[1] == status, whole
        if status == 200:
            assert bytes(whole[-1]) in kind.bodies
            assert part[1] == 200, part
            assert bytes(part[-1]) in [body[10:110] for body in kind.bodies]


def test_a_warm_says_what_cannot_be_cached(passing):
    proxy, _ = passing
    connection = http.client.HTTPConnection(proxy.control.removeprefix("http://"))
    connection.request(
        "POST",
        "/v1/warm",
        b'{"uri": "s3://data/"}',
        {"Content-Type": "application/json"},
    )
    begun = json.loads(connection.getresponse().read())
    connection.close()
    done = wait_for(
        lambda: (found := proxy.get(f"/v1/operations/{begun['id']}"))["state"] != "running" and found
    )
    assert "cannot be cached: the origin sends no strong ETag with it, or no length" in json.dumps(done), done
    assert proxy.stats()["tiers"]["ram"]["used_bytes"] < 200 * LONG
