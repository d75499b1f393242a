"""The operation of a request, and the cached objects that it may change."""

import pytest

from shadeproxy.api.s3.operations import OPERATIONS, Permission, reads_current, resolve, touched
from shadeproxy.api.s3.request import parse_request
from shadeproxy.core.errors import InvalidRequest, NotSupported
from shadeproxy.core.types import ObjectRef

KEY, BUCKET = ObjectRef("b", "k"), ObjectRef("b", "")


def request_of(line, *fields):
    method, target = line.split(" ", 1)
    return parse_request(method, target, [("Host", "h"), *fields])


@pytest.mark.parametrize(
    ("line", "name", "refs"),
    [
        ("GET /", "ListBuckets", ()),
        ("GET /b/k", "GetObject", ()),
        ("GET /b/k?nothing=known", "GetObject", ()),
        ("GET /b/k?x-id=GetObject", "GetObject", ()),
        ("HEAD /b/k", "HeadObject", ()),
        ("PUT /b/k", "PutObject", (KEY,)),
        ("DELETE /b/k", "DeleteObject", (KEY,)),
        ("DELETE /b/k?versionId=1", "DeleteObject", (KEY,)),
        ("POST /b/k?uploads", "CreateMultipartUpload", ()),
        ("PUT /b/k?partNumber=1&uploadId=u", "UploadPart", ()),
        ("POST /b/k?uploadId=u", "CompleteMultipartUpload", (KEY,)),
        ("DELETE /b/k?uploadId=u", "AbortMultipartUpload", ()),
        ("GET /b/k?uploadId=u", "ListParts", ()),
        ("GET /b/k?attributes", "GetObjectAttributes", ()),
        ("PUT /b/k?tagging", "PutObjectTagging", (KEY,)),
        ("PUT /b/k?acl", "PutObjectAcl", (KEY,)),
        ("GET /b", "ListObjects", ()),
        ("GET /b/?list-type=2&prefix=p", "ListObjectsV2", ()),
        ("GET /b?versions", "ListObjectVersions", ()),
        ("GET /b?location", "GetBucketLocation", ()),
        ("HEAD /b", "HeadBucket", ()),
        ("PUT /b", "CreateBucket", (BUCKET,)),
        ("DELETE /b", "DeleteBucket", (BUCKET,)),
        ("PUT /b?policy", "PutBucketPolicy", (BUCKET,)),
        ("PUT /b?lifecycle", "PutBucketLifecycleConfiguration", (BUCKET,)),
        ("DELETE /b?lifecycle", "DeleteBucketLifecycleConfiguration", (BUCKET,)),
        ("GET /b?lifecycle", "GetBucketLifecycleConfiguration", ()),
        ("PUT /b?versioning", "PutBucketVersioning", (ObjectRef("b", ""),)),
        ("POST /b?delete", "DeleteObjects", ()),
    ],
)
def test_the_table(line, name, refs):
    request = request_of(line)
    operation = resolve(request)
    assert operation.name == name
    assert touched(operation, ObjectRef(request.bucket, request.key)) == refs


def test_a_copy_is_told_by_its_header():
    source = ("x-amz-copy-source", "/b/other")
    assert resolve(request_of("PUT /b/k", source)).name == "CopyObject"
    assert resolve(request_of("PUT /b/k?uploadId=u&partNumber=1", source)).name == "UploadPartCopy"


@pytest.mark.parametrize(
    "line", ["PATCH /b/k", "POST /b/k", "POST /b", "PUT /b/k?renameObject", "PUT /", "OPTIONS /"]
)
def test_what_is_not_known_is_refused_by_name(line):
    with pytest.raises(NotSupported, match=line.split(" ", maxsplit=1)[0]):
        resolve(request_of(line))


@pytest.mark.parametrize("line", ["OPTIONS /b", "OPTIONS /b/k", "OPTIONS /b/k?uploads"])
def test_a_preflight_touches_nothing_and_is_never_cached(line):
    operation = resolve(request_of(line))
    assert (operation.name, operation.cached) == ("Preflight", False)
    assert touched(operation, KEY) == ()
    asked = request_of("GET /b/k", ("Origin", "http://a.example"))
    assert not reads_current(resolve(asked), asked)


def test_two_sub_resources_are_refused():
    with pytest.raises(InvalidRequest, match="acl, tagging"):
        resolve(request_of("GET /b/k?acl&tagging"))


def test_only_reads_of_plain_objects_are_cached_and_every_write_needs_the_right():
    for (method, level, marker), operation in OPERATIONS.items():
        assert operation.cached == (method in {"GET", "HEAD"} and level == "object" and not marker)
        if method in {"PUT", "DELETE"}:
            assert operation.permission is Permission.WRITE


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        ("GET /b/k", None, True),
        ("GET /b/k?unknown=1", None, True),
        ("GET /b/k?versionId=1", None, False),
        ("HEAD /b/k?partNumber=1", None, False),
        ("GET /b/k?response-content-type=x", None, False),
        ("GET /b/k", ("x-amz-server-side-encryption-customer-key", "x"), False),
        ("GET /b/k?X-Amz-Server-Side-Encryption-Customer-Algorithm=AES256", None, False),
        ("GET /b/k", ("X-Amz-Request-Payer", "requester"), False),
        ("GET /b/k", ("x-amz-expected-bucket-owner", "1"), False),
        ("GET /b/k", ("x-amz-checksum-mode", "ENABLED"), True),
        ("GET /b", None, False),
        ("GET /b/k?tagging", None, False),
        ("DELETE /b/k", None, False),
    ],
)
def test_only_the_plain_current_object_is_read_from_a_cache(line, field, expected):
    request = request_of(line, *([field] if field else []))
    assert reads_current(resolve(request), request) is expected
