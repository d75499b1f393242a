"""The address of an S3 request: endpoint, Host and raw path, in path style or virtual-host style, and the
region for which it is signed.

A bucket may lie in another region than the configured one. ``Endpoint`` learns its region from the answers of
the server (regions.py). Later requests are signed for that region, and sent to its endpoint at AWS. The bytes
of a key are percent-encoded once and never normalised: dot segments, empty segments and encoded slashes are
sent as they are.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Literal, NamedTuple
from urllib.parse import quote, urlsplit

from shadeproxy.core.errors import ConfigError, InvalidRequest
from shadeproxy.core.sigv4 import is_plain_path, path_of_key
from shadeproxy.core.types import ObjectRef
from shadeproxy.origin.bucket_regions import BucketRegions

Addressing = Literal["path", "virtual", "auto"]

# Bucket names that ``quote`` leaves unchanged.
_PLAIN_BUCKET = re.compile(r"[A-Za-z0-9._~-]*")
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# A host label has no dot: a bucket name with a dot would not match the certificate of *.s3.amazonaws.com.
_HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")

# s3.amazonaws.com, and s3.REGION and s3.dualstack.REGION at amazonaws.com or amazonaws.com.cn.
_REGIONAL_HOST = re.compile(
    r"(s3\.(?:dualstack\.)?)(?:[a-z0-9-]+\.)?(amazonaws\.com(?:\.cn)?(?::\d+)?)", re.IGNORECASE
)
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{1,30}[a-z0-9]")  # The origin must not choose another server.

_PORTS = {"http": 80, "https": 443}

RESERVED_NAMES = ("admin", "auth", "minio", "swift")
"""First path segments that do not name a bucket but an interface of the server: Ceph RGW's admin API and
Swift, or MinIO. A request to such an interface would run with the proxy's own rights.
"""


def is_aws(url: str) -> bool:
    """Return True if an endpoint belongs to AWS. The empty string means AWS."""
    host = urlsplit(url).hostname or ""
    return not url or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


class Peer(NamedTuple):
    """The address of a server."""

    host: str
    port: int
    is_tls: bool

    @classmethod
    def of(cls, url: str) -> "Peer":
        """Return the server of a URL with the scheme http or https."""
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port or _PORTS[parts.scheme], parts.scheme == "https")


class Target(NamedTuple):
    """The server and path of a request. ``origin``: "scheme://host[:port]". ``host``: the field Host.
    ``raw_path``: the path as it is sent and signed. ``region``: the region for which it is signed.
    """

    origin: str
    host: str
    raw_path: str
    region: str


class _BucketTarget(NamedTuple):
    """The target of a bucket. ``before_key``: the path of each of its objects, up to the key."""

    origin: str
    host: str
    raw_path: str
    region: str
    before_key: str


class Endpoint:
    """An S3 endpoint.

    ``url``: None means AWS in ``region``. ``addressing``: "auto" means virtual-host style at amazonaws.com
    for buckets whose name is one host label, and path style everywhere else. ``reserved``: names that are no
    buckets at this server. AWS has no such names, so there ``reserved`` is ignored. ``one_region``: True if
    all buckets are in ``region``, whatever answers say. ``regions``: regions of buckets that other endpoints
    of this process share. Raises ConfigError for a URL that cannot be an endpoint.
    """

    def __init__(
        self,
        url: str | None,
        *,
        region: str,
        addressing: Addressing = "auto",
        reserved: Collection[str] = RESERVED_NAMES,
        one_region: bool = False,
        regions: BucketRegions | None = None,
    ) -> None:
        self.url = (url or f"https://s3.{region}.amazonaws.com").rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
            raise ConfigError(
                'origin.endpoint must be a URL such as "https://s3.example.org" or "http://127.0.0.1:9000",'
                " without credentials or query"
            )
        self._scheme = parts.scheme
        self._netloc = parts.netloc
        default_port = ":443" if parts.scheme == "https" else ":80"
        # Clients leave the default port out of Host, and the signature covers Host.
        self._host = parts.netloc.removesuffix(default_port)
        self._base_path = parts.path
        self._addressing = addressing
        self.is_aws = is_aws(self.url)
        self._reserved = frozenset() if self.is_aws else frozenset(reserved)
        self._region = region
        self._one_region = one_region
        self._regions = BucketRegions() if regions is None else regions
        # The target of a bucket is cached, because its objects differ only in their keys.
        self._bucket_target = lru_cache(maxsize=1024)(self._target_of_bucket)
        self._regions.watch(self._bucket_target.cache_clear)

    def target(self, ref: ObjectRef) -> Target:
        """Return the target of ``ref``. An empty key means the bucket, and an empty bucket the service.

        Raises InvalidRequest if the bucket's name means no bucket at this origin.
        """
        bucket, key, _ = ref
        origin, host, raw_path, region, before_key = self._bucket_target(bucket)
        if key:
            raw_path = before_key + (key if is_plain_path(key) else path_of_key(key))
        return Target(origin, host, raw_path, region)

    def learn_region(self, bucket: str, region: str, *, asked: str) -> bool:
        """Send later requests for ``bucket`` to ``region``, which an answer names. ``asked``: the region for
        which the refused request was signed. Return False if it was ``region``, or if ``region`` cannot be
        the name of a region.
        """
        if self._one_region or not bucket or region == asked or _REGION.fullmatch(region) is None:
            return False
        if region == self._regions.by_bucket.get(bucket, self._region):
            return True  # Another answer has named it since the request was signed.
        self._regions.learn(bucket, region)
        return True

    def _target_of_bucket(self, bucket: str) -> _BucketTarget:
        quoted = bucket if _PLAIN_BUCKET.fullmatch(bucket) else quote(bucket, safe="-_.~")
        before_key = self.target_of(bucket, f"/{quoted}/").raw_path
        return _BucketTarget(*self.target_of(bucket, f"/{quoted}"), before_key)

    def target_of(self, bucket: str, raw_path: str) -> Target:
        """Return the target of a path-style ``raw_path``. In virtual-host style, the bucket's name moves from
        the path to the host. The rest of the path stays as it is.

        Raises InvalidRequest if the bucket's name means no bucket at this origin.
        """
        if bucket in self._reserved or ":" in bucket:
            raise InvalidRequest(
                f"{bucket!r} is not the name of a bucket at this origin",
                hint="origin.reserved_names lists the names that the origin keeps for itself",
            )
        region = self._regions.by_bucket.get(bucket, self._region)
        netloc, host = self._netloc, self._host
        if region != self._region:
            netloc, host = _of_region(netloc, region), _of_region(host, region)
        if bucket and self._is_virtual(bucket):
            _, _, rest = raw_path.removeprefix("/").partition("/")
            origin = f"{self._scheme}://{bucket}.{netloc}"
            return Target(origin, f"{bucket}.{host}", f"{self._base_path}/{rest}", region)
        return Target(f"{self._scheme}://{netloc}", host, self._base_path + raw_path, region)

    def _is_virtual(self, bucket: str) -> bool:
        if self._addressing == "auto":
            return self.is_aws and _HOST_LABEL.fullmatch(bucket) is not None
        # Only a bucket that is a valid host name may become part of a host. Any other name could choose the
        # server.
        return self._addressing == "virtual" and _HOST_NAME.fullmatch(bucket) is not None


def _of_region(netloc: str, region: str) -> str:
    """Return the regional endpoint of AWS for ``region``. Any other endpoint serves all regions."""
    match = _REGIONAL_HOST.fullmatch(netloc)
    return netloc if match is None else f"{match[1]}{region}.{match[2]}"
