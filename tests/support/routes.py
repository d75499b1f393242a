"""The ways by which a client reaches an object store.

They lead directly to the gateway, through a proxy, through a proxy over TLS, or through a proxy of a cluster
that owns nothing. A further way leads to a proxy in front of a directory. All ways accept the same keys, so
that a client needs only another endpoint.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3

DOMAIN = "s3.shade.test"
"""The base domain of virtual-host style requests, at the gateway and at the proxies. No DNS
server knows it.
"""

TRUST = ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "TENSORSTORE_CA_BUNDLE")


@dataclass(frozen=True)
class Route:
    name: str
    endpoint: str
    access_key: str
    secret_key: str
    ca_file: str = ""
    served: Any = field(default=None, compare=False)
    """The proxy on the way; None without a proxy."""
    beside: str = ""
    """An endpoint that shows the same objects without this proxy; "" stands for ``endpoint``."""
    owner: Any = field(default=None, compare=False)
    """The proxy that caches the objects, if ``served`` owns nothing; otherwise None."""

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
        """Return the variables that a user of a client would export, without the settings of this machine.

        ``trust``: the names of the variables that hold the path of the authority's certificate.
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
        """Return a boto3 client that sees the objects without the proxy, to compare other clients with."""
        return boto3.client(
            "s3",
            endpoint_url=self.beside or self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

    def forget(self, bucket: str) -> None:
        """Drop every object of ``bucket`` from the cache."""
        if self.proxied:
            (self.owner or self.served).call("POST", "/v1/purge", {"uri": f"s3://{bucket}"})

    def origin_bytes(self) -> int:
        """Return the number of bytes that the proxies of this way have received from the origin, with
        listings.
        """
        proxies = [self.served, *([self.owner] if self.owner else [])]
        return sum(int(proxy.stats()["totals"]["origin_bytes"]) for proxy in proxies)
