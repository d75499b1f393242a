"""Requests of one node to another, in the form of S3 requests. Each request names its sender, and the client
for which the sender asks.

The sender signs the request as an internal client, with a secret key derived from ``cluster.secret``. It does
not pass on the client's own signature: it has checked that signature, and the client's rights.
"""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote, unquote

from shadeproxy.core.errors import ClockSkew, ConfigError, InvalidRequest, NotOfCluster
from shadeproxy.core.tracing import JOB_FIELD, NONCE_FIELD, PEER_FIELD, REFUSED_FIELD
from shadeproxy.core.types import SHARED, JobContext, Upstream, first_value
from shadeproxy.origin.base import ForwardRequest, ForwardResponse

PEER_KEY = "shade-peer"
"""The access key of the internal client."""
REGION = "shade-cluster"
"""The region in the scope of the internal client's signatures."""
_LABEL = b"shadeproxy peer listener\0"
_REASONS = {
    ClockSkew.__name__: "the clocks of both machines differ by more than 15 minutes: set them",
    NotOfCluster.__name__: "cluster.secret or the clocks of both machines differ: give both the same",
}


def peer_secrets(cluster: str, accepted: Sequence[str]) -> tuple[str, ...]:
    """Return the secret keys of the internal client. A node signs with the first, and accepts signatures by
    any of them. ``accepted``: the values of ``cluster.secret``. Raises ConfigError if there is no value or an
    empty one, because the key would then protect nothing.
    """
    if not accepted or not all(accepted):
        raise ConfigError(
            "cluster.secret is missing, so the nodes cannot recognise each other",
            remedy="set it to a random text",
        )
    return tuple(
        hmac.digest(secret.encode(), _LABEL + cluster.encode(), "sha256").hex() for secret in accepted
    )


class PeerField(NamedTuple):
    """The content of the field ``x-shade-peer``. ``sender``, ``receiver``: names of nodes. ``upstream``,
    ``namespace``: the upstream and the namespace of the client for which the sender asks. ``boot``: the
    number of the receiver's start, from the receiver's facts; "" if the sender does not know it.
    """

    sender: str
    receiver: str
    upstream: Upstream
    namespace: str
    boot: str = ""

    def render(self) -> str:
        """Return the value of the field: its four or five texts, each percent-encoded, with semicolons
        between.
        """
        return ";".join(quote(text, safe="") for text in (self if self.boot else self[:-1]))

    @classmethod
    def parse(cls, field: str) -> "PeerField":
        """Parse the value of the field. Raises InvalidRequest."""
        texts = [unquote(text) for text in field.split(";")]
        if len(texts) not in {4, 5}:
            raise InvalidRequest(f"The header {PEER_FIELD} cannot be understood")
        sender, receiver, upstream, *others = texts
        return cls(sender, receiver, Upstream(upstream), *others)


def job_field(job: JobContext) -> str:
    """Return the value of the field ``x-shade-job`` for a job."""
    numbers = (("epoch", job.epoch), ("rank", job.rank))
    return ";".join([job.job, *(f"{name}={value}" for name, value in numbers if value is not None)])


def addressed(
    request: ForwardRequest, sender: str, receiver: str, *, boot: str = "", writes: bool
) -> ForwardRequest:
    """Return ``request`` in the form that the node ``receiver`` gets. ``boot``: the number of the receiver's
    start; "" if it is not known. ``writes``: add a nonce, by which the receiver recognises a second sending
    of the same write.
    """
    field = PeerField(sender, receiver, request.upstream, request.ref.namespace, boot)
    fields = [(PEER_FIELD, field.render())]
    if request.job is not None:
        fields.append((JOB_FIELD, job_field(request.job)))
    if writes:
        fields.append((NONCE_FIELD, secrets.token_hex(16)))
    return replace(request, headers=(*request.headers, *fields), upstream=SHARED, here=None)


def refusal_of(answer: ForwardResponse) -> str:
    """Return why the node that was asked did nothing, and what to change; "" if it answered the request."""
    named = first_value(answer.headers, REFUSED_FIELD)
    return f"{named}, {_REASONS[named]}" if named in _REASONS else named or ""
