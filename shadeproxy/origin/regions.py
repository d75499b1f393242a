"""Answers by which an S3 server says that a bucket lies in another region than the one asked.

AWS refuses such a request, and names the region: in a header field of a redirect, or in the error document of
a signature for the wrong region. Clients of S3 then ask there, and so does the proxy. Source: Error Responses
(PermanentRedirect, AuthorizationHeaderMalformed) in the S3 API reference.
"""

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import OriginError, OtherRegion
from shadeproxy.core.types import first_value
from shadeproxy.origin import s3answers as answers
from shadeproxy.origin.addressing import Endpoint
from shadeproxy.origin.http1 import Head

NAMES_REGION = {301, 302, 307, 308, 400}
"""The statuses of such answers. A HEAD gets 400 without a code."""


def error_of(
    endpoint: Endpoint, clock: Clock, bucket: str, head: Head, body: bytes, *, asked: str
) -> OriginError:
    """Return the error for an answer with an unexpected status to a request for ``bucket``, which was signed
    for the region ``asked``. If the answer names another region, ``endpoint`` learns it, and the error is
    retryable.
    """
    return other_region(endpoint, bucket, head, body, asked=asked) or answers.error_of(
        head.status, head.headers, body, now_s=clock.now_s()
    )


def other_region(
    endpoint: Endpoint, bucket: str, head: Head, body: bytes, *, asked: str
) -> OtherRegion | None:
    """Return a retryable error if an answer names another region for ``bucket`` than ``asked``, for which the
    request was signed, and let ``endpoint`` learn the region. Return None for all other answers.
    """
    if head.status not in NAMES_REGION:
        return None
    region = first_value(head.headers, "x-amz-bucket-region") or answers.error_field(body, "Region")
    if not endpoint.learn_region(bucket, region, asked=asked):
        return None
    return OtherRegion(f"the bucket {bucket!r} lies in the region {region!r}; try again")
