"""Seals: proof that bytes from the log were written by a node that knows ``cluster.secret``.

A seal binds the body to its cluster and to a purpose, so that a sealed event cannot pass for the facts of a
node, or an event of one stream for an event of another. A seal does not hide the body. It also does not show
whether the body was sent before; numbers inside the body must show it.
"""

import hmac
from collections.abc import Sequence

from shadeproxy.core.errors import PeerError

_FORMAT = b"\x01"
_MAC_BYTES = 32
_MARK_BYTES = 8


class Seals:
    """Seals bodies of one cluster, and checks their seals.

    ``secrets``: the first one seals. Seals by any of them are accepted, so that nodes can change to a new
    secret one after the other. Without a secret the seal is made with the empty one, and protects nothing.
    """

    def __init__(self, cluster: str, secrets: Sequence[str] = ()) -> None:
        self._keys = [
            hmac.digest(secret.encode(), b"shadeproxy cluster\0" + cluster.encode(), "sha256")
            for secret in secrets or ("",)
        ]

    @property
    def accepted(self) -> tuple[str, ...]:
        """A mark of each secret whose seals are accepted. The first one is that of the secret that seals."""
        return tuple(_mac(key, "accepted", b"")[:_MARK_BYTES].hex() for key in self._keys)

    def seal(self, purpose: str, body: bytes) -> bytes:
        """Return the body behind its format number and its HMAC-SHA-256."""
        return _FORMAT + _mac(self._keys[0], purpose, body) + body

    def has_first_seal(self, purpose: str, sealed: bytes) -> bool:
        """Return whether the seal was made with the first secret, by which this node seals too."""
        mac, body = sealed[1 : 1 + _MAC_BYTES], sealed[1 + _MAC_BYTES :]
        return hmac.compare_digest(mac, _mac(self._keys[0], purpose, body))

    def unseal(self, purpose: str, sealed: bytes, sender: str = "") -> bytes:
        """Return the body. Raises ``PeerError`` unless the seal was made for this purpose with an accepted
        secret. ``sender``: a name for the text of the error.
        """
        what = f"{purpose} {sender}".rstrip()
        if sealed[:1] != _FORMAT:
            raise PeerError(f"{what}: sealed by a release that this one does not understand")
        mac, body = sealed[1 : 1 + _MAC_BYTES], sealed[1 + _MAC_BYTES :]
        if not any(hmac.compare_digest(mac, _mac(key, purpose, body)) for key in self._keys):
            raise PeerError(f"{what}: not sealed with this node's cluster.secret")
        return body


def _mac(key: bytes, purpose: str, body: bytes) -> bytes:
    named = purpose.encode()
    return hmac.digest(key, _FORMAT + len(named).to_bytes(4, "big") + named + body, "sha256")
