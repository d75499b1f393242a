"""Clients and their rights: values that the package ``app`` builds from `[[auth.clients]]`."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from shadeproxy.api.s3.operations import Permission
from shadeproxy.core.errors import AccessDenied
from shadeproxy.core.types import OWN, SHARED, Upstream


@dataclass(frozen=True, slots=True)
class Right:
    """Permissions for keys that begin with ``prefix``, in buckets that match the shell pattern ``bucket``."""

    bucket: str = "*"
    prefix: str = ""
    read: bool = True
    write: bool = True
    list: bool = True

    def allows(self, permission: Permission, bucket: str, key: str) -> bool:
        if permission is Permission.READ:
            granted = self.read
        else:
            granted = self.write if permission is Permission.WRITE else self.list
        return granted and key.startswith(self.prefix) and fnmatchcase(bucket, self.bucket)


ALL_RIGHTS = (Right(),)


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A configured client. ``session_token``: the token that each request of a temporary key must have; None
    for other keys. ``namespace``: the namespace of the client's bucket names.
    """

    access_key: str
    secret_key: str = field(repr=False)
    upstream: Upstream = SHARED
    rights: tuple[Right, ...] = ALL_RIGHTS
    session_token: str | None = field(default=None, repr=False)
    namespace: str = OWN

    def identity(self) -> "Identity":
        """Return the identity of the client's requests. Call it only after a signature of the client was
        verified.
        """
        return Identity(self.access_key, self.upstream, self.rights, namespace=self.namespace)


@dataclass(frozen=True, slots=True)
class ChunkSeed:
    """The start of a chain of chunk signatures, in which each signature includes the one before it. The first
    chunk's signature includes that of the request's head.
    """

    signing_key: bytes = field(repr=False)
    amz_date: str
    scope: str
    signature: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """The client of a request, with its rights. ``seed``: the start of the request's chunk signatures; None
    unless the request had a valid signature of version 4.
    """

    name: str
    upstream: Upstream
    rights: tuple[Right, ...]
    seed: ChunkSeed | None = None
    namespace: str = OWN

    def check(self, permission: Permission, bucket: str, key: str) -> None:
        """Raise AccessDenied unless a right covers ``key``. For LIST, ``key`` is the requested prefix."""
        if not any(right.allows(permission, bucket, key) for right in self.rights):
            what = f"{bucket}/{key}" if bucket else "the list of buckets"
            raise AccessDenied(
                f"{self.name} has no right to {permission.name.lower()} {what}",
                hint="add it to the rights of this client in [[auth.clients]]",
            )

    def check_bucket(self, permission: Permission, bucket: str) -> None:
        """Raise AccessDenied unless a right covers at least one key of ``bucket``. HeadBucket,
        GetBucketLocation and similar calls need only such a right.
        """
        if not any(right.allows(permission, bucket, right.prefix) for right in self.rights):
            self.check(permission, bucket, "")

    def check_everything(self, operation: str) -> None:
        """Raise AccessDenied unless one right allows writing to every key of every bucket."""
        if not any(right.write and (right.bucket, right.prefix) == ("*", "") for right in self.rights):
            raise AccessDenied(
                f"{self.name} has no right to write to every bucket, and {operation} may name others",
                hint="let a client of [[auth.clients]] do it whose buckets and prefixes are not bounded",
            )


ANONYMOUS = Identity("anonymous", SHARED, ALL_RIGHTS)
