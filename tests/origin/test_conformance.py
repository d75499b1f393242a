"""Each sentence of the contract in origin/base.py is tested here, for every implementation, wrapper
and fake.
"""

import asyncio

import pytest

from shadeproxy.core.errors import ObjectChanged, OriginAnswer
from shadeproxy.core.types import ObjectRef, Span

BODY = bytes(range(256)) * 12_000  # 3 MB, which is several chunks in every implementation
ODD_KEYS = [
    "a b/c+d", "percent%2Fencoded", "é/\U0001f600", "q?x=1&y=2#f", "~tilde'()*!", 'quote"<>&;', "a:b@c,d",
    "dot.name/..x/x..", "trailing.",
]  # fmt: skip


@pytest.mark.parametrize("body", [b"", b"x", BODY], ids=["empty", "one-byte", "large"])
async def test_a_whole_object_is_read_as_it_was_written(subject, body):
    etag = await subject.put("dir/key.bin", body)
    meta, span, received = await subject.read("dir/key.bin")
    assert (meta.etag, meta.size, span, received) == (etag, len(body), Span(0, len(body)), body)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (Span(0, 1), Span(0, 1)),
        (Span(7, 2_000_000), Span(7, 2_000_000)),
        (Span(len(BODY) - 1, len(BODY)), Span(len(BODY) - 1, len(BODY))),
        (Span(100, 10**12), Span(100, len(BODY))),
        (Span(-1, 0), Span(len(BODY) - 1, len(BODY))),
        (Span(-2_000_000, 0), Span(len(BODY) - 2_000_000, len(BODY))),
        (Span(-(10**12), 0), Span(0, len(BODY))),
    ],
)
async def test_a_span_is_cut_to_the_object(subject, asked, given):
    await subject.put("key", BODY)
    meta, span, received = await subject.read("key", asked)
    assert (meta.size, span, received) == (len(BODY), given, BODY[given.start : given.stop])


@pytest.mark.parametrize(
    ("size", "span"), [(10, Span(10, 15)), (10, Span(11, 16)), (0, Span(0, 5)), (0, Span(-5, 0))]
)
async def test_a_span_that_starts_at_or_beyond_the_end_is_416(subject, size, span):
    await subject.put("key", b"x" * size)
    with pytest.raises(OriginAnswer) as raised:
        await subject.read("key", span)
    assert raised.value.status == 416


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_keys_are_taken_literally(subject, key):
    await subject.put(key, key.encode())
    assert (await subject.read(key))[2] == key.encode()
    assert [entry.key for entry in (await subject.origin.list_objects(subject.bucket, "")).entries] == [key]
    assert (await subject.call("GET", key)).body == key.encode()


@pytest.mark.parametrize("key", ["a//b", "a/../b", "./a", "//", "a/./b"])
async def test_keys_are_never_normalised(subject, key):
    if subject.kind in {"file", "moto"}:
        pytest.skip("a directory refuses such keys (test_file.py); moto's own routing normalises them")
    await subject.put(key, b"body")
    assert (await subject.read(key))[2] == b"body"


async def test_one_version_has_one_etag_everywhere(subject):
    etag = await subject.put("key", b"body")
    (entry,) = (await subject.origin.list_objects(subject.bucket, "key")).entries
    head = await subject.origin.head(subject.ref("key"))
    got, _, _ = await subject.read("key")
    forwarded = await subject.call("HEAD", "key")
    assert {etag, entry.etag, head.etag, got.etag, forwarded.header("ETag")} == {etag}
    assert etag.startswith('"')
    assert etag.endswith('"')
    assert entry.size == head.size == 4


async def test_a_new_version_has_a_new_etag(subject):
    assert await subject.put("key", b"one") != await subject.put("key", b"two")


async def test_buffers_are_filled_one_after_the_other(subject):
    body = bytes(range(256)) * 1000
    await subject.put("key", body)
    got = bytearray()
    async with subject.origin.open(subject.ref("key")) as reading:
        for size in (1, 70_000, 1, 100_000):
            buffer = bytearray(size)
            arrivals: list[int] = []
            await reading.read_into(memoryview(buffer), arrivals.append)
            assert sum(arrivals) == size
            got += buffer
    assert got == body[: len(got)]


async def test_missing_keys_and_buckets_are_404(subject):
    for ref in (subject.ref("missing"), ObjectRef("no-such-bucket-here", "key")):
        with pytest.raises(OriginAnswer) as raised:
            await subject.origin.head(ref)
        assert raised.value.status == 404
        with pytest.raises(OriginAnswer) as raised:
            async with subject.origin.open(ref):
                pass
        assert raised.value.status == 404
    assert raised.value.code == "NoSuchBucket"
    with pytest.raises(OriginAnswer, match="404 NoSuchBucket"):
        await subject.origin.list_objects("no-such-bucket-here", "")


async def test_if_match_reads_the_version_or_says_that_it_changed(subject):
    old = await subject.put("key", b"one")
    async with subject.origin.open(subject.ref("key"), if_match=old) as reading:
        assert reading.meta.etag == old
    await subject.put("key", b"two")
    for span in (None, Span(0, 2)):
        with pytest.raises(ObjectChanged):
            async with subject.origin.open(subject.ref("key"), span=span, if_match=old):
                pass


async def test_metadata_belongs_to_the_object_and_framing_does_not(subject, has_attributes):
    if subject.kind == "file" and not has_attributes:
        pytest.skip("the temporary directory has no extended attributes")
    sent = (
        ("Content-Type", "image/png"),
        ("Cache-Control", "max-age=60"),
        ("Content-Language", "de"),
        ("x-amz-meta-label", "seven"),
    )
    await subject.put("key", b"body", sent)
    for meta in (await subject.origin.head(subject.ref("key")), (await subject.read("key"))[0]):
        for name, value in sent:
            assert meta.header(name) == value
        assert meta.header("Last-Modified")
        names = {name.lower() for name, _ in meta.headers}
        assert not names & {
            "etag",
            "content-length",
            "content-range",
            "date",
            "connection",
            "x-amz-request-id",
        }


async def test_listing_is_in_utf8_order_of_whole_keys(subject):
    keys = ["a-b", "a/x", "a/y/z", "a0", "b", "é", "\uffee", "\U0001f600"]
    for key in reversed(keys):
        await subject.put(key, b"")
    listed = await subject.origin.list_objects(subject.bucket, "")
    assert [entry.key for entry in listed.entries] == keys == sorted(keys, key=str.encode)
    assert not listed.truncated
    below = await subject.origin.list_objects(subject.bucket, "a/")
    assert [entry.key for entry in below.entries] == ["a/x", "a/y/z"]
    partial = await subject.origin.list_objects(subject.bucket, "a", start_after="a/x")
    assert [entry.key for entry in partial.entries] == ["a/y/z", "a0"]
    assert (await subject.origin.list_objects(subject.bucket, "zzz")).entries == ()


@pytest.mark.parametrize("max_keys", [1, 3, 7])
async def test_listing_page_by_page_gives_each_key_once(subject, max_keys):
    keys = sorted(["a!", "a-b", "a/1", "a/2", "b/c/d", "b/c/e", "c"])
    for key in keys:
        await subject.put(key, key.encode())
    seen, after, truncated = [], "", True
    while truncated:
        page = await subject.origin.list_objects(subject.bucket, "", start_after=after, max_keys=max_keys)
        assert len(page.entries) <= max_keys
        seen += [entry.key for entry in page.entries]
        after, truncated = seen[-1], page.truncated
    assert seen == keys


async def test_leaving_a_body_early_leaves_the_origin_usable(subject):
    await subject.put("key", BODY)
    for _ in range(4):
        async with subject.origin.open(subject.ref("key")) as reading:
            assert await anext(reading.chunks)
    for _ in range(4):
        async with subject.origin.open(subject.ref("key")):
            pass
    assert (await subject.read("key"))[2] == BODY


async def test_a_cancelled_reader_leaves_the_origin_usable(subject):
    await subject.put("key", BODY)
    first_chunk = asyncio.Event()

    async def read_forever():
        async with subject.origin.open(subject.ref("key")) as reading:
            await anext(reading.chunks)
            first_chunk.set()
            await asyncio.get_running_loop().create_future()

    for _ in range(4):
        task = asyncio.create_task(read_forever())
        await first_chunk.wait()
        first_chunk.clear()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await subject.read("key"))[2] == BODY


async def test_probe_says_what_answered_and_closing_twice_is_harmless(subject):
    assert "bucket" in await subject.origin.probe()
    await subject.origin.aclose()
    await subject.origin.aclose()
