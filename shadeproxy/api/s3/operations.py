"""The S3 operation of a request, the right that it needs, and the cached objects that it may change.

One table maps (method, service | bucket | object, sub-resource) to Operation. A sub-resource is a query
parameter from a closed list. No other parameter selects an operation, so an unknown parameter cannot change
which cached objects are dropped. A request that is not in the table gets NotSupported (501), but only after
authentication. Source: the operation pages of the S3 API reference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from shadeproxy.api.s3.fields import AMZ_FIELDS
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.errors import InvalidRequest, NotSupported
from shadeproxy.core.types import ObjectRef


class Permission(Enum):
    """The kind of right that an operation needs."""

    READ = auto()
    WRITE = auto()
    LIST = auto()


class Touches(Enum):
    """The cached objects that an operation may change."""

    NOTHING = auto()
    OBJECT = auto()
    BUCKET = auto()
    LISTED = auto()
    """The objects that are named in the request's body (DeleteObjects)."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One S3 operation. ``late_success``: the origin sends its 200 before the work is done, and white space
    to keep the connection alive; the body then tells whether the work succeeded. ``reaches_others``: the body
    may name other buckets, which the origin then writes or reads with the proxy's rights. ``asked_by_get``: a
    HEAD that Ceph RGW answers with the body of a GET. So the origin gets a GET, and the client gets no body.
    """

    name: str
    permission: Permission
    touches: Touches = Touches.NOTHING
    cached: bool = False
    late_success: bool = False
    reaches_others: bool = False
    asked_by_get: bool = False


_Key = tuple[str, str, str]
_READ, _WRITE, _LIST = Permission.READ, Permission.WRITE, Permission.LIST


def _object_table() -> Iterator[tuple[_Key, Operation]]:
    plain = {
        ("GET", ""): Operation("GetObject", _READ, cached=True),
        ("HEAD", ""): Operation("HeadObject", _READ, cached=True),
        ("PUT", ""): Operation("PutObject", _WRITE, Touches.OBJECT),
        # A call of Ceph: PUT ?append&position=N.
        ("PUT", "append"): Operation("AppendObject", _WRITE, Touches.OBJECT),
        ("DELETE", ""): Operation("DeleteObject", _WRITE, Touches.OBJECT),
        ("POST", "uploads"): Operation("CreateMultipartUpload", _WRITE),
        ("PUT", "uploadId"): Operation("UploadPart", _WRITE),
        ("GET", "uploadId"): Operation("ListParts", _READ),
        ("DELETE", "uploadId"): Operation("AbortMultipartUpload", _WRITE),
        ("POST", "uploadId"): Operation("CompleteMultipartUpload", _WRITE, Touches.OBJECT, late_success=True),
        ("GET", "attributes"): Operation("GetObjectAttributes", _READ),
        ("GET", "torrent"): Operation("GetObjectTorrent", _READ),
        ("POST", "restore"): Operation("RestoreObject", _WRITE, Touches.OBJECT, reaches_others=True),
        ("POST", "select"): Operation("SelectObjectContent", _READ),
        ("PUT", "encryption"): Operation("UpdateObjectEncryption", _WRITE, Touches.OBJECT),
    }
    for (method, marker), operation in plain.items():
        yield (method, "object", marker), operation
    for marker, noun in {
        "acl": "ObjectAcl",
        "tagging": "ObjectTagging",
        "legal-hold": "ObjectLegalHold",
        "retention": "ObjectRetention",
    }.items():
        yield ("GET", "object", marker), Operation(f"Get{noun}", _READ)
        # Each of these operations changes a header field of the answer to a GET (tagging count, lock state),
        # or the right to read the object.
        yield ("PUT", "object", marker), Operation(f"Put{noun}", _WRITE, Touches.OBJECT)
    yield ("HEAD", "object", "acl"), Operation("GetObjectAcl", _READ, asked_by_get=True)
    yield ("DELETE", "object", "tagging"), Operation("DeleteObjectTagging", _WRITE, Touches.OBJECT)


def _bucket_table() -> Iterator[tuple[_Key, Operation]]:
    plain = {
        ("GET", ""): Operation("ListObjects", _LIST),
        ("GET", "versions"): Operation("ListObjectVersions", _LIST),
        ("GET", "uploads"): Operation("ListMultipartUploads", _LIST),
        ("HEAD", "acl"): Operation("GetBucketAcl", _LIST, asked_by_get=True),
        ("HEAD", "uploads"): Operation("ListMultipartUploads", _LIST, asked_by_get=True),
        ("GET", "location"): Operation("GetBucketLocation", _LIST),
        ("GET", "policyStatus"): Operation("GetBucketPolicyStatus", _LIST),
        ("HEAD", ""): Operation("HeadBucket", _LIST),
        ("PUT", ""): Operation("CreateBucket", _WRITE, Touches.BUCKET),
        ("DELETE", ""): Operation("DeleteBucket", _WRITE, Touches.BUCKET),
        ("POST", "delete"): Operation("DeleteObjects", _WRITE, Touches.LISTED),
    }
    for (method, marker), operation in plain.items():
        yield (method, "bucket", marker), operation
    # Some of these settings change the right to read, others the expiry of objects (x-amz-expiration). A
    # server that does not know a setting may take the request for one about the bucket itself. So after each
    # of these requests the cached pages of the bucket are checked.
    settings = {
        "lifecycle": "BucketLifecycleConfiguration",
        "acl": "BucketAcl",
        "policy": "BucketPolicy",
        "ownershipControls": "BucketOwnershipControls",
        "publicAccessBlock": "PublicAccessBlock",
        "accelerate": "BucketAccelerateConfiguration",
        "analytics": "BucketAnalyticsConfiguration",
        "cors": "BucketCors",
        "encryption": "BucketEncryption",
        "intelligent-tiering": "BucketIntelligentTieringConfiguration",
        "inventory": "BucketInventoryConfiguration",
        "logging": "BucketLogging",
        "metrics": "BucketMetricsConfiguration",
        "notification": "BucketNotificationConfiguration",
        "object-lock": "ObjectLockConfiguration",
        "replication": "BucketReplication",
        "requestPayment": "BucketRequestPayment",
        "tagging": "BucketTagging",
        "versioning": "BucketVersioning",
        "website": "BucketWebsite",
    }
    # S3 cannot delete these settings. A server that ignored the parameter would delete the bucket.
    permanent = {
        "acl",
        "accelerate",
        "logging",
        "notification",
        "object-lock",
        "requestPayment",
        "versioning",
    }
    for marker, noun in settings.items():
        yield ("GET", "bucket", marker), Operation(f"Get{noun}", _LIST)
        others = marker in {"analytics", "inventory", "logging", "notification", "replication"}
        put = Operation(f"Put{noun}", _WRITE, Touches.BUCKET, reaches_others=others)
        yield ("PUT", "bucket", marker), put
        if marker not in permanent:
            name = "DeleteBucketLifecycle" if marker == "lifecycle" else f"Delete{noun}"
            yield ("DELETE", "bucket", marker), Operation(name, _WRITE, Touches.BUCKET)


OPERATIONS: dict[_Key, Operation] = {
    ("GET", "service", ""): Operation("ListBuckets", _LIST),
    **dict(_object_table()),
    **dict(_bucket_table()),
}
# Sub-resources of S3 that no operation here has. Without them in the list, the request would seem to be one
# for the object or the bucket itself.
_REFUSED_MARKERS = frozenset({"annotation", "renameObject", "session"})
MARKERS = frozenset(marker for _, _, marker in OPERATIONS if marker) | _REFUSED_MARKERS
GET_OBJECT = OPERATIONS["GET", "object", ""]
RESPONSE_OVERRIDES = frozenset(
    {
        "response-cache-control",
        "response-content-disposition",
        "response-content-encoding",
        "response-content-language",
        "response-content-type",
        "response-expires",
    }
)
"""Parameters of GetObject and HeadObject. Each sets one header field of the answer."""
_LIST_V2 = Operation("ListObjectsV2", _LIST)
_COPY = Operation("CopyObject", _WRITE, Touches.OBJECT, late_success=True)
_COPY_PART = Operation("UploadPartCopy", _WRITE)
COPIES = frozenset({_COPY.name, _COPY_PART.name})
PREFLIGHT = Operation("Preflight", _READ)
"""The unsigned request that a browser sends before a request to another site. The origin answers it from the
bucket's CORS rules alone.
"""

# A GET or HEAD with one of these parameters asks for a certain version, or for one part of an object. It is
# forwarded and never cached.
_BYPASS_PARAMETERS = frozenset({"versionId", "partNumber"})
# Some servers refuse a read with a field of another operation, and some ignore the field. A read with the
# field Origin is answered according to the bucket's CORS rules. So the cache answers none of them.
_BYPASS_FIELDS = AMZ_FIELDS - {"x-amz-checksum-mode", "x-amz-user-agent"} | {"origin"}


def resolve(request: S3Request) -> Operation:
    """Return the operation of ``request``. Raises NotSupported, or InvalidRequest for two sub-resources."""
    level = "object" if request.key else "bucket" if request.bucket else "service"
    if request.method == "OPTIONS" and request.bucket:
        return PREFLIGHT
    markers = [name for name in request.query if name in MARKERS]
    if len(markers) > 1:
        raise InvalidRequest(f"Conflicting query parameters: {', '.join(sorted(markers))}")
    marker = markers[0] if markers else ""
    operation = OPERATIONS.get((request.method, level, marker))
    if operation is None and request.method == "HEAD" and marker:
        # Servers differ in their answers to such a HEAD. Forward it if the client has the right to the GET
        # with the same parameter.
        operation = OPERATIONS.get(("GET", level, marker))
    if operation is None:
        what = f"{request.method} on a {level}" + (f" with ?{marker}" if marker else "")
        raise NotSupported(f"{what} is not an operation that this proxy implements")
    if operation.name == "ListObjects" and request.query.get("list-type") == "2":
        return _LIST_V2
    if "x-amz-copy-source" in request.fields:
        return {"PutObject": _COPY, "UploadPart": _COPY_PART}.get(operation.name, operation)
    return operation


def reads_current(operation: Operation, request: S3Request) -> bool:
    """Return True if a request reads the current version of an object, unchanged, and nothing else. Only such
    a request may be answered by the cache.
    """
    return (
        operation.cached
        and _BYPASS_FIELDS.isdisjoint(request.fields)
        and not any(map(_bypasses, request.query))
    )


def _bypasses(name: str) -> bool:
    """Return True if a query parameter of this name makes a read one that the cache may not answer."""
    lowered = name.lower()
    return name in _BYPASS_PARAMETERS or lowered.startswith("response-") or lowered in _BYPASS_FIELDS


def touched(operation: Operation, ref: ObjectRef) -> tuple[ObjectRef, ...]:
    """Return the objects that an operation on ``ref`` invalidates, except objects that its body names."""
    if operation.touches is Touches.OBJECT:
        return (ref,)
    if operation.touches is Touches.BUCKET:
        return (ref.beside(""),)
    return ()
