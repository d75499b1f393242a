"""The query parameters that each operation may have, besides the sub-resource that selects it.

Law: a parameter that an operation does not have is never forwarded. GetObject and HeadObject ignore such
parameters, as S3 does, because some clients add one to get past caches. All other operations refuse them,
because they could change the meaning of the request after its rights were checked. A test compares the table
with the service model of botocore.
"""

from collections.abc import Mapping

from shadeproxy.api.s3.fields import AMZ_FIELDS
from shadeproxy.api.s3.operations import MARKERS, RESPONSE_OVERRIDES, Operation
from shadeproxy.core.errors import InvalidRequest, NotSupported

_NONE: frozenset[str] = frozenset()
_VERSION = frozenset({"versionId"})
_READ = _VERSION | RESPONSE_OVERRIDES | {"partNumber"}
# "allow-unordered" is a parameter of Ceph.
_LIST = frozenset(
    {
        "allow-unordered",
        "continuation-token",
        "delimiter",
        "encoding-type",
        "fetch-owner",
        "list-type",
        "marker",
        "max-keys",
        "prefix",
        "start-after",
    }
)
_CONFIGURATION = frozenset({"continuation-token", "id"})
_OF_OPERATION: dict[str, frozenset[str]] = {
    "AppendObject": frozenset({"position"}),
    "DeleteObject": _VERSION,
    "GetObject": _READ,
    "GetObjectAttributes": _VERSION,
    "HeadObject": _READ,
    "ListBuckets": frozenset({"bucket-region", "continuation-token", "max-buckets", "prefix"}),
    "ListMultipartUploads": frozenset(
        {"delimiter", "encoding-type", "key-marker", "max-uploads", "prefix", "upload-id-marker"}
    ),
    "ListObjectVersions": frozenset(
        {
            "allow-unordered",
            "delimiter",
            "encoding-type",
            "key-marker",
            "max-keys",
            "prefix",
            "version-id-marker",
        }
    ),
    "ListObjects": _LIST,
    "ListObjectsV2": _LIST,
    "ListParts": frozenset({"encoding-type", "max-parts", "part-number-marker"}),
    "RestoreObject": _VERSION,
    "SelectObjectContent": frozenset({"select-type"}),
    "UpdateObjectEncryption": _VERSION,
    "UploadPart": frozenset({"partNumber"}),
    "UploadPartCopy": frozenset({"partNumber"}),
    **{f"{verb}Object{noun}": _VERSION for verb in ("Get", "Put", "Delete")
       for noun in ("Acl", "LegalHold", "Retention", "Tagging")},
    **{f"{verb}Bucket{noun}Configuration": _CONFIGURATION for verb in ("Get", "Put", "Delete")
       for noun in ("Analytics", "IntelligentTiering", "Inventory", "Metrics")},
}  # fmt: skip
_ALWAYS = MARKERS | {"x-id"}
_WITH_VALUE = frozenset({"uploadId", "partNumber"})
_PARTS = frozenset({"UploadPart", "UploadPartCopy"})


def known_parameters(operation: Operation, query: Mapping[str, str]) -> Mapping[str, str]:
    """Return the parameters in ``query`` that belong to ``operation``.

    Raises NotSupported for a parameter that could change the operation's meaning. Raises InvalidRequest if a
    server could take the request for another operation.
    """
    for name in _WITH_VALUE.intersection(query):
        if not query[name]:
            # Servers treat these sub-resources as absent if they have no value, and would carry out another
            # operation.
            raise InvalidRequest(f"The query parameter {name} has no value")
    if operation.name in _PARTS and "partNumber" not in query:
        raise InvalidRequest(f"{operation.name} needs the query parameter partNumber")
    known = _OF_OPERATION.get(operation.name, _NONE)
    unknown = [name for name in query if name not in known and name not in _ALWAYS]
    if not unknown:
        return query
    # A query parameter with the name of a header field acts as this field only in a presigned URL. In another
    # request it would have no effect, which the client does not expect. So refuse it, even for a plain read.
    fields = AMZ_FIELDS.intersection(map(str.lower, unknown))
    refused = [name for name in unknown if not operation.cached or name.lower() in fields]
    if refused:
        raise NotSupported(
            f"{operation.name} has no query parameter {refused[0]!r} that this proxy implements",
            hint="leave it out",
        )
    return {name: value for name, value in query.items() if name not in unknown}
