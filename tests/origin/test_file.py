"""FileOrigin beyond the conformance suite: names, versions, files that change, and files that are never
listed.
"""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from shadeproxy.core.errors import (
    BodyCutShort,
    ConfigError,
    InvalidRequest,
    NotSupported,
    ObjectChanged,
    OriginAnswer,
    OriginUnavailable,
)
from shadeproxy.core.types import ObjectRef, Span
from shadeproxy.origin.base import ForwardRequest
from shadeproxy.origin.file import FileOrigin
from shadeproxy.origin.filetree import attributes, scanning, writing
from shadeproxy.origin.filetree.pool import FilePool
from shadeproxy.origin.filetree.reading import CHUNK_BYTES
from shadeproxy.origin.s3ops import multipart

BAD_KEYS = ["../secret", "a/../../secret", "/etc/passwd", "a//b", "./a", "a/.", "..", "a\0b", "\udc80"]


@pytest.fixture
async def origin(tmp_path: Path):
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    origin = FileOrigin(tmp_path / "root", threads=2)
    yield origin
    await origin.aclose()


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "root" / "bucket"


def ref(key: str) -> ObjectRef:
    return ObjectRef("bucket", key)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def send(origin, method, key, body=None, headers=(), *, query=""):
    async def chunks():
        yield body

    sent = chunks() if body is not None else None
    request = ForwardRequest(method, ref(key), f"/bucket/{key}", raw_query=query, headers=headers, body=sent)
    async with origin.forward(request) as response:
        return response.status, dict(response.headers), b"".join([chunk async for chunk in response.chunks])


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_no_key_leads_out_of_its_bucket(origin, key):
    with pytest.raises(OriginAnswer, match="404 NoSuchKey"):
        await origin.head(ref(key))
    with pytest.raises(OriginAnswer, match="404 NoSuchKey"):
        async with origin.open(ref(key)):
            pass
    with pytest.raises(InvalidRequest, match="cannot store a key with an empty"):
        await send(origin, "PUT", key, b"body")
    assert (await send(origin, "DELETE", key))[0] == 204
    assert (await origin.list_objects("bucket", key)).entries == ()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", ".hidden", "bucket/../bucket"])
async def test_no_bucket_name_leads_out_of_the_root(origin, name):
    with pytest.raises(OriginAnswer, match="404 NoSuchBucket"):
        await origin.head(ObjectRef(name, "secret"))
    with pytest.raises(OriginAnswer, match="404 NoSuchBucket"):
        await origin.list_objects(name, "")


async def test_files_put_there_by_others_are_objects(origin, bucket):
    (bucket / "train").mkdir()
    (bucket / "train" / "cat.png").write_bytes(b"png")
    (bucket / "link").symlink_to("train/cat.png")
    os.mkfifo(bucket / "pipe")
    (bucket / os.fsdecode(b"not-utf8-\xff")).touch()
    meta = await origin.head(ref("train/cat.png"))
    assert (meta.size, meta.header("Content-Type")) == (3, "image/png")
    assert [entry.key for entry in (await origin.list_objects("bucket", "")).entries] == [
        "link",
        "train/cat.png",
    ]
    for not_an_object in ("train", "pipe", "train/cat.png/below"):
        with pytest.raises(OriginAnswer, match="404"):
            async with origin.open(ref(not_an_object)):
                pass


async def test_a_link_to_a_parent_does_not_make_the_listing_endless(origin, bucket):
    (bucket / "a").mkdir()
    (bucket / "a" / "x").write_bytes(b"")
    (bucket / "a" / "loop").symlink_to("..")
    assert [entry.key for entry in (await origin.list_objects("bucket", "")).entries] == ["a/x"]


async def test_a_link_to_a_directory_is_no_object_to_write_or_delete(origin, bucket):
    (bucket / "real").mkdir()
    (bucket / "real" / "x").write_bytes(b"x")
    (bucket / "link").symlink_to("real")
    with pytest.raises(InvalidRequest, match="cannot hold both an object and objects below it"):
        await send(origin, "PUT", "link", b"body")
    assert (await send(origin, "DELETE", "link"))[0] == 204
    assert [entry.key for entry in (await origin.list_objects("bucket", "link")).entries] == ["link/x"]


async def test_what_is_no_object_is_not_deleted(origin, bucket):
    os.mkfifo(bucket / "pipe")
    assert (await send(origin, "DELETE", "pipe"))[0] == 204
    assert names_in(bucket) == ["pipe"]


async def test_deleting_a_key_with_a_slash_leaves_the_object_without_it_alone(origin):
    await send(origin, "PUT", "a", b"body", (("x-amz-meta-owner", "me"),))
    assert (await send(origin, "DELETE", "a/"))[0] == 204
    assert (await origin.head(ref("a"))).header("x-amz-meta-owner") == "me"


@pytest.mark.parametrize("metadata", [(), (("x-amz-meta-owner", "me"),)])
@pytest.mark.parametrize("key", ["a/", "a/b/"])
async def test_a_marker_beside_an_object_of_its_name_is_refused(origin, metadata, key):
    await send(origin, "PUT", "a", b"body", metadata)
    with pytest.raises(InvalidRequest, match="cannot hold both an object and objects below it"):
        await send(origin, "PUT", key, b"")


@pytest.mark.parametrize("key", ["x" * 256, "x" * 256 + "/", "a/" + "x" * 256])
async def test_a_segment_that_is_too_long_for_a_file_name_is_refused_in_words(origin, key):
    status, _, document = await send(origin, "PUT", key, b"")
    assert (status, b"<Code>KeyTooLongError</Code>" in document) == (400, True)
    with pytest.raises(OriginAnswer, match="404 NoSuchKey"):
        await origin.head(ref(key))
    assert (await send(origin, "DELETE", key))[0] == 204


async def test_etag_is_not_an_md5_and_changes_with_every_version(origin):
    seen = set()
    for _ in range(50):  # Quick overwrites of equal size may get the same inode within one tick of the clock.
        _, headers, _ = await send(origin, "PUT", "key", b"same")
        seen.add(headers["ETag"])
        assert (await origin.head(ref("key"))).etag == headers["ETag"]
    assert len(seen) == 50
    assert all(len(etag) == 36 and etag.endswith('-1"') for etag in seen)


async def test_a_new_version_is_dated_finer_than_the_file_systems_clock(origin, bucket, monkeypatch):
    monkeypatch.setattr(writing.time, "time_ns", lambda: 1_800_000_000_123_456_789)
    await send(origin, "PUT", "key", b"body")
    assert (bucket / "key").stat().st_mtime_ns == 1_800_000_000_123_456_789


async def test_what_is_opened_for_a_reader_that_gave_up_is_closed_again():
    opening, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Opened:
        close = staticmethod(closed.set)

    def open_slowly():
        opening.set()
        go_on.wait()
        return Opened()

    pool = FilePool(1)
    waiter = asyncio.create_task(pool.acquire(open_slowly))
    await asyncio.to_thread(opening.wait)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    go_on.set()
    await asyncio.to_thread(closed.wait, 10)
    assert closed.is_set()
    await pool.aclose()


async def test_a_file_replaced_while_it_is_read_gives_the_old_version_whole(origin):
    old = b"o" * (3 * CHUNK_BYTES)
    await send(origin, "PUT", "key", old)
    async with origin.open(ref("key")) as reading:
        received = await anext(reading.chunks)
        await send(origin, "PUT", "key", b"n" * len(old))
        received += b"".join([chunk async for chunk in reading.chunks])
    assert received == old


@pytest.mark.parametrize(("size", "error"), [(3 * CHUNK_BYTES, ObjectChanged), (CHUNK_BYTES, BodyCutShort)])
async def test_a_file_rewritten_in_place_is_never_a_mix(origin, bucket, size, error):
    await send(origin, "PUT", "key", b"o" * (3 * CHUNK_BYTES))
    with pytest.raises(error):
        async with origin.open(ref("key")) as reading:
            await anext(reading.chunks)
            (bucket / "key").write_bytes(b"n" * size)
            async for chunk in reading.chunks:
                assert set(chunk) == {ord("o")}


async def test_drafts_and_uploads_are_never_listed_and_never_served(origin, bucket):
    (bucket / ".shadeproxy" / "drafts").mkdir(parents=True)
    (bucket / ".shadeproxy" / "drafts" / "half").write_bytes(b"half")
    await send(origin, "PUT", "key", b"body")
    for prefix in ("", ".", ".shadeproxy/", ".shadeproxy/drafts/"):
        keys = [entry.key for entry in (await origin.list_objects("bucket", prefix)).entries]
        assert keys == (["key"] if prefix == "" else [])
    with pytest.raises(OriginAnswer, match="404"):
        await origin.head(ref(".shadeproxy/drafts/half"))
    assert (await send(origin, "GET", ".shadeproxy/drafts/half"))[0] == 400
    assert names_in(bucket / ".shadeproxy" / "drafts") == ["half"], "a finished PUT leaves no draft"


async def test_an_upload_that_ends_while_uploads_are_listed_is_left_out(origin, bucket, monkeypatch):
    for key in ("a", "b"):
        assert (await send(origin, "POST", key, query="uploads="))[0] == 200
    load = multipart._load

    async def ending(store, name, upload_id):
        upload = await load(store, name, upload_id)
        if upload.ref.key == "a":
            await store.remove(upload.record)
        return await load(store, name, upload_id)

    monkeypatch.setattr(multipart, "_load", ending)
    status, _, body = await send(origin, "GET", "", query="uploads=")
    assert (status, body.count(b"<Key>"), b"<Key>b</Key>" in body) == (200, 1, True)


async def test_a_bucket_with_an_upload_that_has_just_begun_is_not_deleted(origin, bucket):
    """It may begin after DeleteBucket has looked for uploads, and before the files are removed."""
    assert (await send(origin, "POST", "key", query="uploads="))[0] == 200
    with pytest.raises(OriginAnswer, match="409 BucketNotEmpty"):
        await origin.store.delete_bucket("bucket")
    assert b"<Key>key</Key>" in (await send(origin, "GET", "", query="uploads="))[2]


@pytest.mark.parametrize("key", ["key", "a/b", "marker/"])
async def test_a_write_under_way_does_not_bring_a_deleted_bucket_back(origin, bucket, key):
    async with origin.store.draft(ref(key)) as draft:
        if key != "marker/":
            await draft.write(b"b" * (2 << 20))
        await origin.store.delete_bucket("bucket")
        with pytest.raises(OriginAnswer, match="404 NoSuchBucket"):
            await draft.publish(())
    assert not bucket.exists()


async def test_abandoned_drafts_are_swept_after_a_day(origin, bucket):
    (bucket / ".shadeproxy" / "drafts").mkdir(parents=True)
    for name, mtime in (("old", 0), ("young", None)):
        (bucket / ".shadeproxy" / "drafts" / name).touch()
        if mtime is not None:
            os.utime(bucket / ".shadeproxy" / "drafts" / name, (mtime, mtime))
    await send(origin, "PUT", "key", b"body")
    assert names_in(bucket / ".shadeproxy" / "drafts") == ["young"]


async def test_deleting_prunes_the_directories_it_empties(origin, bucket):
    await send(origin, "PUT", "a/b/c", b"")
    await send(origin, "PUT", "a/d", b"")
    await send(origin, "DELETE", "a/b/c")
    assert names_in(bucket / "a") == ["d"]


async def test_an_object_cannot_be_a_directory_too(origin):
    await send(origin, "PUT", "a", b"")
    with pytest.raises(InvalidRequest, match="both an object and objects below it"):
        await send(origin, "PUT", "a/b", b"")
    await send(origin, "PUT", "d/x", b"")
    with pytest.raises(InvalidRequest, match="both an object and objects below it"):
        await send(origin, "PUT", "d", b"")


async def test_directory_markers_are_empty_objects(origin, has_attributes):
    if not has_attributes:
        pytest.skip("the temporary directory has no extended attributes")
    assert (await send(origin, "PUT", "a/", b""))[0] == 200
    etag = (await origin.head(ref("a/"))).etag
    await send(origin, "PUT", "a/x", b"1")
    listed = await origin.list_objects("bucket", "")
    assert [(entry.key, entry.size) for entry in listed.entries] == [("a/", 0), ("a/x", 1)]
    assert {listed.entries[0].etag, (await origin.head(ref("a/"))).etag} == {etag}
    await send(origin, "DELETE", "a/x")
    assert (await send(origin, "GET", "a/"))[::2] == (200, b"")
    await send(origin, "DELETE", "a/")
    assert (await origin.list_objects("bucket", "")).entries == ()
    with pytest.raises(InvalidRequest, match="cannot have a body"):
        await send(origin, "PUT", "a/", b"body")


async def test_metadata_without_extended_attributes_is_refused_in_clear_words(origin, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(attributes.os, "setxattr", refuse)
    with pytest.raises(NotSupported, match=r"no extended attributes.*send the object without x-amz-meta-a"):
        await send(origin, "PUT", "key.png", b"", (("x-amz-meta-a", "1"),))
    with pytest.raises(OriginAnswer, match="404"):
        await origin.head(ref("key.png"))
    # A Content-Type that follows from the key's ending needs no attribute.
    assert (await send(origin, "PUT", "key.png", b"", (("Content-Type", "image/png"),)))[0] == 200


async def test_listing_reads_only_the_directories_that_can_answer(origin, bucket, monkeypatch):
    for number in range(20):
        (bucket / f"d{number:02}").mkdir()
        (bucket / f"d{number:02}" / "x").write_bytes(b"")
    opened = []
    scandir = os.scandir
    monkeypatch.setattr(scanning.os, "scandir", lambda path: opened.append(Path(path).name) or scandir(path))
    await origin.list_objects("bucket", "d07/")
    assert opened == ["d07"]
    opened.clear()
    await origin.list_objects("bucket", "", start_after="d15/x", max_keys=2)
    assert opened == ["bucket", "d15", "d16", "d17", "d18"]


async def test_a_big_directory_is_read_once_while_it_is_paged_through(origin, bucket, monkeypatch):
    for number in range(1500):
        (bucket / f"{number:04}").touch()
    os.utime(bucket, (1, 1))  # The directory looks unchanged for long, so its listing may be used again.
    opened = []
    scandir = os.scandir
    monkeypatch.setattr(scanning.os, "scandir", lambda path: opened.append(path) or scandir(path))
    first = await origin.list_objects("bucket", "")
    (bucket / "zzz").touch()
    second = await origin.list_objects("bucket", "", start_after=first.entries[-1].key)
    assert (len(first.entries), len(second.entries), second.entries[-1].key) == (1000, 501, "zzz")
    opened.clear()
    os.utime(bucket, (1, 1))
    first = await origin.list_objects("bucket", "", max_keys=800)
    await origin.list_objects("bucket", "", start_after=first.entries[-1].key)
    assert len(opened) == 1


async def test_probe_counts_the_buckets(tmp_path):
    origin = FileOrigin(tmp_path)
    said = [await origin.probe()]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        said.append(await origin.probe())
    await origin.aclose()
    assert [one.rpartition(": ")[2] for one in said] == ["0 buckets", "1 bucket", "2 buckets"]


async def test_probe_names_the_setting_when_the_directory_is_missing(tmp_path):
    origin = FileOrigin(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"origin\.path = .*missing' is not a directory: create it"):
        await origin.probe()
    await origin.aclose()


async def test_no_descriptor_stays_open(origin):
    await send(origin, "PUT", "key", b"x" * (3 * CHUNK_BYTES))
    before = len(names_in(Path("/proc/self/fd")))
    for _ in range(20):
        async with origin.open(ref("key"), span=Span(0, 10)) as reading:
            await anext(reading.chunks)
    await origin.aclose()
    assert len(names_in(Path("/proc/self/fd"))) <= before


@pytest.mark.parametrize("call", ["stat", "getxattr"])
async def test_a_listing_without_a_file_that_cannot_be_read_fails(origin, bucket, monkeypatch, call):
    (bucket / "a").write_bytes(b"1")
    (bucket / "d").mkdir()
    (bucket / "d" / "b").write_bytes(b"2")
    (bucket / "gone").symlink_to("nowhere")
    (bucket / "loop").symlink_to("loop")
    assert [entry.key for entry in (await origin.list_objects("bucket", "")).entries] == ["a", "d/b"]
    real = getattr(os, call)

    def failing(path, *rest, **options):
        if str(path).endswith("/d/b" if call == "stat" else "/d"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *rest, **options)

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(OriginUnavailable, match="the file system answered: Input/output error"):
        await origin.list_objects("bucket", "")


@pytest.mark.parametrize(("code", "error"), [("ESTALE", OriginUnavailable), ("ENOENT", OriginAnswer)])
async def test_a_bucket_that_cannot_be_read_is_not_said_to_be_missing(
    origin, bucket, monkeypatch, code, error
):
    number, real = getattr(errno, code), os.stat

    def failing(path, *rest, **options):
        if str(path) == str(bucket):
            raise OSError(number, os.strerror(number))
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(error, match="404 NoSuchBucket" if code == "ENOENT" else "Stale file handle"):
        await origin.list_objects("bucket", "")


async def test_buckets_of_a_file_system_that_fails_are_an_error_of_the_origin(origin, monkeypatch):
    def failing(_path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(OriginUnavailable, match="Stale file handle"):
        await origin.probe()
