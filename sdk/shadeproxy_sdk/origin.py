"""An S3 endpoint (the S3 listener of the proxy, or the origin), and how requests to it are signed.

Addresses are path style. Signing needs botocore (extra ``s3``), which is imported for the first signed
request. If an ``Origin`` has keys but botocore is missing, a warning is logged when it is made, before
training needs it.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import quote

from shadeproxy_sdk.address import check_url
from shadeproxy_sdk.errors import ConfigError

_LOG = logging.getLogger("shadeproxy_sdk")


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key with its secret. Secrets never show in ``repr``."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """An S3 endpoint. Without ``access_key`` requests are not signed."""

    endpoint_url: str
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_url(
            self.endpoint_url,
            "an S3 endpoint",
            "http://host:port or https://host",
            "give keys as Origin(access_key=..., secret_key=...), in AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or for the proxy as Client(credentials=...)",
        )
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError(
                "An origin needs both access_key and secret_key, or neither for unsigned requests"
            )
        object.__setattr__(self, "endpoint_url", self.endpoint_url.rstrip("/"))
        if self.access_key is not None and find_spec("botocore") is None:
            _LOG.warning(
                "%s. Until then nothing can be read from there, and training ends if the proxy does",
                self._unsigned,
            )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Origin | None":
        """Return the origin that the AWS environment variables name, or None if they name none.

        AWS_ENDPOINT_URL_S3 comes first, then AWS_ENDPOINT_URL. If neither is set, the origin is Amazon's
        endpoint for AWS_REGION or AWS_DEFAULT_REGION, provided that AWS_ACCESS_KEY_ID is set.
        """
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
        access_key = environ.get("AWS_ACCESS_KEY_ID") or None
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        if not endpoint:
            if not region or not access_key:
                return None
            endpoint = f"https://s3.{region}.amazonaws.com"
        return cls(
            endpoint,
            region or "us-east-1",
            access_key,
            environ.get("AWS_SECRET_ACCESS_KEY") or None,
            environ.get("AWS_SESSION_TOKEN") or None,
        )

    def object_url(self, bucket: str, key: str) -> str:
        """Return the path-style URL of an object, with each octet of the names encoded once."""
        return f"{self.endpoint_url}/{quote(bucket)}/{quote(key, safe='/-_.~')}"

    def sign(self, method: str, url: str) -> dict[str, str]:
        """Return header fields that sign a request without a body; none if the origin has no keys. Raises
        ConfigError if botocore is missing.
        """
        if self.access_key is None or self.secret_key is None:
            return {}
        try:
            from botocore.auth import S3SigV4Auth  # noqa: PLC0415 (an extra, needed by signed requests only)
            from botocore.awsrequest import AWSRequest  # noqa: PLC0415 (as above)
            from botocore.credentials import Credentials as SigningKey  # noqa: PLC0415 (as above)
        except ImportError:
            raise ConfigError(self._unsigned) from None
        request = AWSRequest(method=method, url=url)
        key = SigningKey(self.access_key, self.secret_key, self.session_token)
        S3SigV4Auth(key, "s3", self.region).add_auth(request)
        return dict(request.headers.items())

    @property
    def _unsigned(self) -> str:
        return (
            f"Requests to {self.endpoint_url} are to be signed with {self.access_key}, for which "
            "botocore is missing: pip install botocore, or leave the keys out where "
            "anonymous reads are allowed"
        )


def wire_url(url: str) -> str:
    """Encode "." and ".." segments of a key in ``url``. HTTP clients would remove them (RFC 3986 section
    5.2.4).
    """
    dots = {".": "%2E", "..": "%2E%2E"}
    return "/".join(dots.get(part, part) for part in url.split("/"))
