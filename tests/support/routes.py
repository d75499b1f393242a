"""The ways from a client to an object store: to the gateway directly, through a proxy, through a proxy over
TLS, through a proxy of a cluster that owns nothing; and to a proxy in front of a directory.

All accept the same keys, so that only the endpoint differs for a client.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3

DOMAIN = "s3.shade.test"
"""Base domain of virtual-host style, at the gateway and at the proxies. It is in no DNS."""

TRUST = ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "TENSORSTORE_CA_BUNDLE")


@dataclass(frozen=True)
class Route:
    name: str
    endpoint: str
    access_key: str
    secret_key: str
    ca_file: str = ""
    served: Any = field(default=None, compare=False)
    """The proxy, if the route has one."""
    beside: str = ""
    """The endpoint at which the same objects are seen without this proxy; "" means ``endpoint``."""
    owner: Any = field(default=None, compare=False)
    """The proxy that caches for ``served``, if that one owns nothing."""

    @property
    def proxied(self) -> bool:
        return self.served is not None

    @property
    def host(self) -> str:
        return self.endpoint.partition("://")[2]

    @property
    def tls(self) -> bool:
        return self.endpoint.startswith("https:")

    def with_wrong_secret(self) -> "Route":
        return replace(self, secret_key="not-the-secret")

    def environment(self, home: Path, trust: tuple[str, ...] = TRUST) -> dict[str, str]:
        """Return the variables that a user of any client would export, without the machine's own
        configuration. ``trust``: the variables that name the authority.
        """
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        } | (dict.fromkeys(trust, self.ca_file) if self.ca_file else {})

    def truth(self) -> Any:
        """Return a boto3 client that is not compared, and that sees the objects past the proxy."""
        return boto3.client(
            "s3",
            endpoint_url=self.beside or self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

    def forget(self, bucket: str) -> None:
        """Make every object of ``bucket`` cold."""
        if self.proxied:
            (self.owner or self.served).call("POST", "/v1/purge", {"uri": f"s3://{bucket}"})

    def origin_bytes(self) -> int:
        """Return the bytes that the route's proxies have received from the origin so far, listings
        included.
        """
        proxies = [self.served, *([self.owner] if self.owner else [])]
        return sum(int(proxy.stats()["totals"]["origin_bytes"]) for proxy in proxies)
