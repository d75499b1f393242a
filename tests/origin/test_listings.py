"""Listings of an S3 server that no listing may be, and such documents in other calls of an origin."""

from contextlib import aclosing

import pytest

from shadeproxy.cluster.delete_parts import DeletePart, end_of, merged, split_delete
from shadeproxy.core.errors import NotS3, OriginUnavailable
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, once
from shadeproxy.origin.memory import MemoryOrigin
from tests.support.answering import answering


def answer(document):
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(document.encode())}\r\n\r\n{document}"


def entry(key):
    return (
        f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
        "<ETag>&quot;e&quot;</ETag><Size>5</Size><Owner><ID>i</ID></Owner></Contents>"
    )


def listing(*keys):
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<EncodingType>url</EncodingType>{''.join(map(entry, keys))}</ListBucketResult>"
    )


def odd(root):
    """Return documents that no call of S3 has, by what is odd about them."""
    attributes = " ".join(f'a{number}="b"' for number in range(20_000))
    return {
        "attributes": f"<{root} {attributes}></{root}>",
        "depth": f"<{root}>{'<a>' * 1000}{'</a>' * 1000}</{root}>",
        "elements": f"<{root}>{'<Contents/>' * 200_000}</{root}>",
        "comment": f"<{root}><!--{'c' * 100_000}--></{root}>",
    }


async def listed(new_s3_origin, document, prefix):
    async with answering(answer(document)) as (url, _), aclosing(new_s3_origin(url)) as origin:
        page = await origin.list_objects("bucket", prefix)
        return [found.key for found in page.entries]


@pytest.mark.parametrize("count", [0, 3, 1000])
async def test_a_listing_is_read(new_s3_origin, count):
    keys = [f"train/a b+{place:04d}\u00e4" for place in range(count)]
    document = listing(*(key.replace("+", "%2B").replace(" ", "+") for key in keys))
    assert await listed(new_s3_origin, document, "train/") == keys


@pytest.mark.parametrize("kind", odd(""))
async def test_a_document_that_no_listing_may_be_is_refused(new_s3_origin, kind):
    with pytest.raises(OriginUnavailable, match="is not a listing"):
        await listed(new_s3_origin, odd("ListBucketResult")[kind], "")


@pytest.mark.parametrize("key", ["other/secret", "../../etc/passwd", "trai", "Train/a"])
async def test_a_key_outside_the_prefix_is_refused(new_s3_origin, key):
    with pytest.raises(OriginUnavailable, match=rf"bucket 'bucket' below 'train/' has the key '{key}'"):
        await listed(new_s3_origin, listing("train/a", key), "train/")


@pytest.mark.parametrize("kind", odd(""))
async def test_such_a_document_is_no_list_of_buckets(new_s3_origin, kind):
    document = odd("ListAllMyBucketsResult")[kind]
    async with answering(answer(document)) as (url, _), aclosing(new_s3_origin(url)) as origin:
        with pytest.raises(NotS3):
            await origin.probe()


@pytest.mark.parametrize("kind", odd(""))
async def test_such_a_document_of_a_node_is_no_result_of_a_delete(kind):
    document = "<Delete><Object><Key>a</Key></Object><Object><Key>b</Key></Object></Delete>"
    request = ForwardRequest(
        "POST", ObjectRef("bucket", ""), "/bucket", "delete", body=once(document.encode())
    )
    parts = await split_delete(request, lambda ref: ref.key)
    assert [type(part) for part in parts] == [DeletePart, DeletePart]
    result = odd("DeleteResult")[kind].encode()
    ends = [await end_of(part, ForwardResponse(200, (), once(result))) for part in parts]
    body = b"".join([chunk async for chunk in merged(ends).chunks])
    assert [body.count(f"<Key>{key}</Key><Code>InternalError".encode()) for key in "ab"] == [1, 1]


@pytest.mark.parametrize("kind", odd(""))
async def test_such_a_document_of_a_client_completes_no_upload(kind):
    origin = MemoryOrigin()
    origin.put("bucket", "other", b"")

    async def post(query, document):
        request = ForwardRequest(
            "POST", ObjectRef("bucket", "key"), "/bucket/key", query, body=once(document.encode())
        )
        async with origin.forward(request) as response:
            return response.status, b"".join([chunk async for chunk in response.chunks]).decode()

    _, begun = await post("uploads", "")
    upload_id = begun.partition("<UploadId>")[2].partition("<")[0]
    status, refused = await post(f"uploadId={upload_id}", odd("CompleteMultipartUpload")[kind])
    assert (status, "not well-formed" in refused) == (400, True)
