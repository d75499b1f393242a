"""Operations on buckets: list, head, create, delete, and get the location."""

import re

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.origin.base import ForwardRequest, ForwardResponse
from shadeproxy.origin.s3ops.answers import document, element, empty, iso_date, read_body, text
from shadeproxy.origin.s3ops.store import RESERVED, UPLOADS, Store

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

OWNER = element("Owner", text("ID", "shadeproxy"), text("DisplayName", "shadeproxy"))


async def list_buckets(store: Store, request: ForwardRequest) -> ForwardResponse:
    del request
    entries = [
        element("Bucket", text("Name", bucket.name), text("CreationDate", iso_date(bucket.created_s)))
        for bucket in await store.buckets()
    ]
    return document("ListAllMyBucketsResult", [OWNER, element("Buckets", *entries)])


async def head_bucket(store: Store, request: ForwardRequest) -> ForwardResponse:
    await require_bucket(store, request.ref.bucket)
    return empty(200)


async def bucket_location(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer with an empty location constraint, which S3 defines as us-east-1."""
    await require_bucket(store, request.ref.bucket)
    return document("LocationConstraint", [])


async def create_bucket(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Create a bucket. The location constraint in the body is ignored, because it means nothing here."""
    await read_body(request)
    name = request.ref.bucket
    if not _BUCKET_NAME.fullmatch(name) or ".." in name:
        raise OriginAnswer(400, "InvalidBucketName", "The specified bucket is not valid.")
    await store.create_bucket(name)
    return empty(200, ("Location", f"/{name}"))


async def delete_bucket(store: Store, request: ForwardRequest) -> ForwardResponse:
    bucket = request.ref.bucket
    page = await store.scan(bucket, UPLOADS, "", 1)
    if page.entries:
        raise OriginAnswer(409, "BucketNotEmpty", "The bucket has multipart uploads in progress.")
    await store.delete_bucket(bucket)
    return empty(204)


async def require_bucket(store: Store, bucket: str) -> None:
    """Raise OriginAnswer 404 NoSuchBucket if the bucket does not exist."""
    await store.scan(bucket, RESERVED, "", 1)
