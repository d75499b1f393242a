"""``forward`` of every implementation, wrapper and fake. It carries the S3 operations that are not cached
reads.
"""

import base64
import hashlib
from collections.abc import AsyncIterator
from urllib.parse import quote, unquote_plus

import pytest

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.origin.base import ForwardRequest


async def test_forwarded_reads_honour_range_and_conditions(subject):
    etag = await subject.put("key", b"0123456789")
    whole = await subject.call("GET", "key")
    assert (whole.status, whole.body, whole.header("ETag")) == (200, b"0123456789", etag)
    assert whole.header("Content-Length") == "10"
    part = await subject.call("GET", "key", headers=(("Range", "bytes=2-4"),))
    assert (part.status, part.body, part.header("Content-Range")) == (206, b"234", "bytes 2-4/10")
    last = await subject.call("GET", "key", headers=(("Range", "bytes=-3"),))
    assert (last.status, last.body) == (206, b"789")
    beyond = await subject.call("GET", "key", headers=(("Range", "bytes=10-"),))
    assert (beyond.status, b"InvalidRange" in beyond.body) == (416, True)
    unchanged = await subject.call("GET", "key", headers=(("If-None-Match", etag),))
    assert (unchanged.status, unchanged.body) == (304, b"")
    failed = await subject.call("GET", "key", headers=(("If-Match", '"other"'),))
    assert (failed.status, b"PreconditionFailed" in failed.body) == (412, True)
    head = await subject.call("HEAD", "key")
    assert (head.status, head.header("Content-Length"), head.body) == (200, "10", b"")


@pytest.mark.parametrize("value", ["a%0Ab", "a%0D%0Ax-amz-meta-b:%201", "a%01b", "%7F"])
async def test_no_parameter_puts_a_control_character_into_the_head(subject, value):
    """It could end the field and begin another one, which the client would take for the server's."""
    if subject.kind in {"moto", "rgw"}:
        pytest.skip("another server's answer is checked where it arrives")
    await subject.put("key", b"body")
    for name in ("content-type", "content-disposition", "expires"):
        answer = await subject.call("GET", "key", f"response-{name}={value}")
        assert (answer.status, b"<Code>InvalidArgument</Code>" in answer.body) == (400, True)
    plain = await subject.call("GET", "key", "response-content-disposition=attachment%3B%20filename%3Da.txt")
    assert (plain.status, plain.header("Content-Disposition")) == (200, "attachment; filename=a.txt")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_object_put_whole_is_one_part(subject, method):
    if subject.kind == "rgw":
        pytest.skip("Ceph 16 ignores partNumber")
    await subject.put("key", b"0123456789")
    part = await subject.call(method, "key", "partNumber=1")
    assert (part.status, part.header("Content-Range")) == (206, "bytes 0-9/10")
    assert part.body == (b"0123456789" if method == "GET" else b"")
    for number in ("2", "10001"):
        assert (await subject.call(method, "key", f"partNumber={number}")).status in {400, 416}
    ranged = (("Range", "bytes=0-1"),)
    if subject.kind != "moto":  # moto uses the range and ignores the part number, instead of a refusal.
        assert (await subject.call(method, "key", "partNumber=1", headers=ranged)).status == 400


async def test_an_empty_object_is_a_part_without_a_range(subject):
    """Part 1 of an empty object is answered with 200 and without a range. CRT clients read an empty object in
    this way: they ask for a range first, and after the 416 for part 1.
    """
    if subject.kind == "moto":
        pytest.skip("moto answers with the range 0--1/0")
    await subject.put("key", b"")
    part = await subject.call("GET", "key", "partNumber=1")
    assert (part.status, part.header("Content-Range"), part.header("Content-Length")) == (200, None, "0")


async def test_forwarded_errors_are_answers(subject):
    missing = await subject.call("GET", "missing")
    assert (missing.status, b"<Code>NoSuchKey</Code>" in missing.body) == (404, True)
    head = await subject.call("HEAD", "missing")
    assert (head.status, head.body) == (404, b"")
    no_bucket = await subject.call("GET", "key", bucket="no-such-bucket-here")
    assert (no_bucket.status, b"NoSuchBucket" in no_bucket.body) == (404, True)
    assert (await subject.call("HEAD", bucket="no-such-bucket-here")).status == 404


async def test_delete_removes_and_is_idempotent(subject):
    await subject.put("a/b/c", b"body")
    for _ in range(2):
        assert (await subject.call("DELETE", "a/b/c")).status == 204
    assert (await subject.call("GET", "a/b/c")).status == 404
    assert (await subject.origin.list_objects(subject.bucket, "")).entries == ()


async def test_delete_objects_answers_for_each_key(subject):
    for key in ("one", "two & a half", "three"):
        await subject.put(key, b"")
    xml = (
        b"<Delete><Object><Key>one</Key></Object><Object><Key>two &amp; a half</Key></Object>"
        b"<Object><Key>missing</Key></Object></Delete>"
    )
    md5 = base64.b64encode(hashlib.md5(xml).digest()).decode()
    answer = await subject.call("POST", "", "delete=", headers=(("Content-MD5", md5),), body=xml)
    assert answer.status == 200
    assert answer.text.count("<Deleted>") == 3
    left = await subject.origin.list_objects(subject.bucket, "")
    assert [entry.key for entry in left.entries] == ["three"]


async def test_copy_keeps_or_replaces_metadata(subject, has_attributes):
    if subject.kind == "file" and not has_attributes:
        pytest.skip("the temporary directory has no extended attributes")
    await subject.put("from/é", b"body", (("x-amz-meta-a", "1"),))
    source = ("x-amz-copy-source", f"/{subject.bucket}/from/%C3%A9")
    kept = await subject.call("PUT", "kept", headers=(source,))
    assert (kept.status, b"<ETag>" in kept.body) == (200, True)
    replaced = await subject.call(
        "PUT", "replaced", headers=(source, ("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-b", "2"))
    )
    assert replaced.status == 200
    first, _, body = await subject.read("kept")
    assert (first.header("x-amz-meta-a"), body) == ("1", b"body")
    second = await subject.origin.head(subject.ref("replaced"))
    assert (second.header("x-amz-meta-a"), second.header("x-amz-meta-b")) == (None, "2")
    missing = await subject.call("PUT", "x", headers=(("x-amz-copy-source", f"/{subject.bucket}/missing"),))
    assert missing.status == 404


async def test_multipart_upload_from_start_to_end(subject):
    part_bytes = 5 << 20
    await subject.put("source", b"s" * part_bytes)
    created = await subject.call("POST", "big", "uploads=")
    upload_id = created.text.partition("<UploadId>")[2].partition("<")[0]
    assert created.status == 200
    listed = await subject.call("GET", "", "uploads=")
    assert upload_id in listed.text
    copied = await subject.call(
        "PUT", "big", f"partNumber=1&uploadId={upload_id}",
        headers=(
            ("x-amz-copy-source", f"{subject.bucket}/source"),
            ("x-amz-copy-source-range", f"bytes=0-{part_bytes - 1}"),
        ),
    )  # fmt: skip
    assert copied.status == 200
    first = copied.text.partition("<ETag>")[2].partition("<")[0].replace("&quot;", '"')
    sent = await subject.call("PUT", "big", f"partNumber=2&uploadId={upload_id}", body=b"tail")
    parts = await subject.call("GET", "big", f"uploadId={upload_id}")
    assert (parts.text.count("<Part>"), "<PartNumber>2</PartNumber>" in parts.text) == (2, True)
    with pytest.raises(OriginAnswer):
        await subject.origin.head(subject.ref("big"))
    xml = (
        f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{first}</ETag></Part>"
        f"<Part><PartNumber>2</PartNumber><ETag>{sent.header('ETag')}</ETag></Part></CompleteMultipartUpload>"
    ).encode()
    done = await subject.call("POST", "big", f"uploadId={upload_id}", body=xml)
    assert done.status == 200, done.text
    _, _, body = await subject.read("big")
    assert body == b"s" * part_bytes + b"tail"
    assert (await subject.call("GET", "big", f"uploadId={upload_id}")).status == 404
    keys = [entry.key for entry in (await subject.origin.list_objects(subject.bucket, "")).entries]
    assert keys == ["big", "source"]


@pytest.mark.parametrize("most", [1, 2, 1000])
async def test_the_list_of_uploads_has_pages_and_common_prefixes(subject, most):
    if subject.kind == "moto":
        pytest.skip("moto ignores these parameters")
    started = []
    for key in ("a/1", "a/2", "b", "b", "c d"):
        created = await subject.call("POST", key, "uploads=")
        started.append((key, _between(created.text, "<UploadId>", "<")[0]))
    pages, marker = [], ""
    for _ in range(8):
        listed = await subject.call("GET", "", f"uploads=&max-uploads={most}{marker}")
        keys, ids = (_between(listed.text, f"<{tag}>", "<") for tag in ("Key", "UploadId"))
        pages.append(list(zip(keys, ids, strict=True)))
        if "<IsTruncated>true" not in listed.text:
            break
        key, upload_id = (
            quote(_between(listed.text, f"<{tag}>", "<")[0])
            for tag in ("NextKeyMarker", "NextUploadIdMarker")
        )
        marker = f"&key-marker={key}&upload-id-marker={upload_id}"
    assert [len(page) for page in pages[:-1]] == [most] * (len(pages) - 1)
    found = [upload for page in pages for upload in page]
    assert [key for key, _ in found] == sorted(key for key, _ in started)
    assert sorted(found) == sorted(started)
    grouped = await subject.call("GET", "", "uploads=&delimiter=/")
    if subject.kind != "rgw":  # Ceph 16 names the element of a common prefix otherwise here.
        assert _between(grouped.text, "<CommonPrefixes><Prefix>", "<") == ["a/"]
    assert _between(grouped.text, "<Key>", "<") == ["b", "b", "c d"]
    later = await subject.call("GET", "", "uploads=&prefix=b&key-marker=a")
    assert _between(later.text, "<Key>", "<") == ["b", "b"]
    for key, upload_id in started:
        await subject.call("DELETE", key, f"uploadId={upload_id}")


async def test_an_aborted_upload_leaves_nothing(subject):
    created = await subject.call("POST", "big", "uploads=")
    upload_id = created.text.partition("<UploadId>")[2].partition("<")[0]
    await subject.call("PUT", "big", f"partNumber=1&uploadId={upload_id}", body=b"part")
    assert (await subject.call("DELETE", "big", f"uploadId={upload_id}")).status == 204
    if subject.kind != "moto":  # moto answers 500 here.
        late = await subject.call("PUT", "big", f"partNumber=1&uploadId={upload_id}", body=b"x")
        assert late.status == 404
    assert (await subject.origin.list_objects(subject.bucket, "")).entries == ()


@pytest.mark.parametrize("version", ["", "list-type=2&"])
async def test_listing_with_delimiter_groups_and_pages(subject, version):
    keys = ["a/1", "a/2", "b", "c/x/1", "c/y", "d"]
    for key in keys:
        await subject.put(key, b"1")
    found, token = [], ""
    for _ in range(8):
        answer = await subject.call("GET", "", f"{version}delimiter=%2F&max-keys=2{token}")
        assert answer.status == 200
        text = answer.text
        found += _between(text, "<CommonPrefixes><Prefix>", "<") + _between(text, "<Key>", "<")
        if "<IsTruncated>true" not in text:
            break
        name, tag = ("continuation-token", "NextContinuationToken") if version else ("marker", "NextMarker")
        token = f"&{name}=" + _between(text, f"<{tag}>", "<")[0].replace("/", "%2F").replace("=", "%3D")
    assert sorted(found) == ["a/", "b", "c/", "d"]
    below = await subject.call("GET", "", f"{version}delimiter=%2F&prefix=c%2F")
    assert _between(below.text, "<CommonPrefixes><Prefix>", "<") == ["c/x/"]
    assert _between(below.text, "<Key>", "<") == ["c/y"]


async def test_listing_encodes_keys_when_asked(subject):
    await subject.put("a b/é&", b"")
    answer = await subject.call("GET", "", "list-type=2&encoding-type=url")
    (shown,) = _between(answer.text, "<Key>", "<")
    assert unquote_plus(shown) == "a b/é&"  # S3 does not encode "/", but Ceph does.
    assert "%C3%A9%26" in shown


async def test_buckets_are_created_listed_and_deleted(subject):
    other = f"{subject.bucket}-b"
    assert (await subject.call("PUT", bucket=other)).status == 200
    assert (await subject.call("HEAD", bucket=other)).status == 200
    listed = await subject.call("GET", bucket="")
    assert {subject.bucket, other} <= set(_between(listed.text, "<Name>", "<"))
    assert b"LocationConstraint" in (await subject.call("GET", "", "location=", bucket=other)).body
    await subject.put("key", b"")
    full = await subject.call("DELETE")
    assert (full.status, b"BucketNotEmpty" in full.body) == (409, True)
    assert (await subject.call("DELETE", bucket=other)).status == 204
    assert (await subject.call("HEAD", bucket=other)).status == 404


async def test_a_wrong_digest_is_refused_and_changes_nothing(subject):
    if subject.kind == "moto":
        pytest.skip("moto checks no digests")
    await subject.put("key", b"old")
    wrong = base64.b64encode(hashlib.md5(b"something else").digest()).decode()
    answer = await subject.call("PUT", "key", headers=(("Content-MD5", wrong),), body=b"new")
    assert (answer.status, b"BadDigest" in answer.body or b"InvalidDigest" in answer.body) == (400, True)
    assert (await subject.read("key"))[2] == b"old"


async def test_conditional_writes(subject):
    if subject.kind == "rgw":
        pytest.skip("Ceph 16 knows no If-None-Match on PutObject in this form")
    once = (("If-None-Match", "*"),)
    assert (await subject.call("PUT", "key", headers=once, body=b"one")).status == 200
    assert (await subject.call("PUT", "key", headers=once, body=b"two")).status == 412
    assert (await subject.read("key"))[2] == b"one"


class _BrokenUpload(Exception):
    pass


async def test_an_upload_that_breaks_changes_nothing_and_keeps_its_error(subject):
    await subject.put("key", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"n" * 70_000
        raise _BrokenUpload

    request = ForwardRequest(
        "PUT", subject.ref("key"), f"/{subject.bucket}/key", body=broken(), content_length=200_000
    )
    with pytest.raises(_BrokenUpload):
        async with subject.origin.forward(request) as response:
            assert response.status >= 400
            raise _BrokenUpload  # The origin may also notice the broken upload first, and answer it.
    assert (await subject.read("key"))[2] == b"old"


def _between(text: str, start: str, stop: str) -> list[str]:
    return [piece.partition(stop)[0] for piece in text.split(start)[1:]]
