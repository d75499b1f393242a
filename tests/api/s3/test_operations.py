"""The proxy finds the operation of each request, and the cached objects that the operation may change."""

import botocore.session
import pytest

from shadeproxy.api.s3.canonical import canonical
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
        ("DELETE /b?lifecycle", "DeleteBucketLifecycle", (BUCKET,)),
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


# ------------------------------------------------------------------ comparison with the service model

# Operations of Ceph that the service model of S3 does not have.
_OF_CEPH = {"AppendObject"}
# Operations of S3 that the proxy answers with 501: for directory buckets, for tables of a bucket's metadata,
# for access by attributes, for annotations, and for functions that answer a GET.
_NOT_HERE = {
    "CreateBucketMetadataConfiguration",
    "CreateBucketMetadataTableConfiguration",
    "CreateSession",
    "DeleteBucketMetadataConfiguration",
    "DeleteBucketMetadataTableConfiguration",
    "DeleteObjectAnnotation",
    "GetBucketAbac",
    "GetBucketMetadataConfiguration",
    "GetBucketMetadataTableConfiguration",
    "GetObjectAnnotation",
    "ListObjectAnnotations",
    "PutBucketAbac",
    "PutObjectAnnotation",
    "RenameObject",
    "UpdateBucketMetadataAnnotationTableConfiguration",
    "UpdateBucketMetadataInventoryTableConfiguration",
    "UpdateBucketMetadataJournalTableConfiguration",
    "WriteGetObjectResponse",
}
# These operations have the name of another operation here, because only parameters distinguish their
# requests. ListDirectoryBuckets differs by its host, which is not compared.
_NAMED_AS = {
    "GetBucketLifecycle": "GetBucketLifecycleConfiguration",
    "GetBucketNotification": "GetBucketNotificationConfiguration",
    "ListBucketAnalyticsConfigurations": "GetBucketAnalyticsConfiguration",
    "ListBucketIntelligentTieringConfigurations": "GetBucketIntelligentTieringConfiguration",
    "ListBucketInventoryConfigurations": "GetBucketInventoryConfiguration",
    "ListBucketMetricsConfigurations": "GetBucketMetricsConfiguration",
    "ListDirectoryBuckets": "ListBuckets",
    "PutBucketLifecycle": "PutBucketLifecycleConfiguration",
    "PutBucketNotification": "PutBucketNotificationConfiguration",
}


def model_requests():
    """Return a request for each operation of S3 by its name. It has the parameters that the model
    requires.
    """
    model, requests = botocore.session.get_session().get_service_model("s3"), {}
    for name in model.operation_names:
        operation = model.operation_model(name)
        path, _, query = operation.http["requestUri"].partition("?")
        parts, fields, shape = [part for part in query.split("&") if part], [], operation.input_shape
        for member in shape.required_members if shape else ():
            where = shape.members[member].serialization
            if where.get("location") == "querystring":
                parts.append(f"{where['name']}=1")
            elif where.get("location") == "header" and where["name"].startswith("x-amz-copy"):
                fields.append((where["name"], "b/other"))
        path = path.replace("{Bucket}", "b").replace("{Key+}", "k")
        requests[name] = request_of(f"{operation.http['method']} {path}?{'&'.join(parts)}", *fields)
    return requests


def refused(request):
    try:
        canonical(request, resolve(request))
    except NotSupported:
        return True
    return False


def test_every_operation_of_the_model_has_its_name_or_is_refused():
    requests = model_requests()
    assert {name for name, request in requests.items() if refused(request)} == _NOT_HERE & requests.keys()
    for name in requests.keys() - _NOT_HERE:
        assert resolve(requests[name]).name == _NAMED_AS.get(name, name), name


def test_no_operation_is_known_that_the_model_does_not_have():
    known = {operation.name for operation in OPERATIONS.values()}
    assert known - model_requests().keys() == _OF_CEPH


@pytest.mark.parametrize(
    "marker",
    ["acl", "accelerate", "logging", "notification", "object-lock", "requestPayment", "versioning"],
)
async def test_a_setting_that_cannot_be_deleted_deletes_no_bucket(make_proxy, marker):
    proxy = await make_proxy()
    proxy.origin.put("b", "k", b"")
    answer = await proxy.get(f"/b?{marker}", method="DELETE")
    assert answer.startswith(b"HTTP/1.1 501 "), answer
    assert b"<Code>NotImplemented</Code>" in answer
    assert proxy.origin.forwards == 0
