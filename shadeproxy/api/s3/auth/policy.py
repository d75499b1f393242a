"""POST policies: what a signed document lets a browser upload.

The policy is what is signed, so a field counts only if a condition of the policy covers it; a field that
none covers is refused. Source: "Creating a POST policy" in the S3 API reference.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.auth.clients import ANONYMOUS, Identity
from shadeproxy.core.errors import (
    AccessDenied,
    BodyTooLarge,
    InvalidRequest,
    MalformedAuth,
    SignatureMismatch,
)
from shadeproxy.core.sigv4 import ALGORITHM, Scope, signing_key

_UNCOVERED = frozenset({"awsaccesskeyid", "policy", "signature", "x-amz-signature"})


@dataclass(frozen=True, slots=True)
class Upload:
    """What the form asks for: ``fields`` by lower-case name, ``length`` of the file in bytes."""

    bucket: str
    fields: Mapping[str, str]
    length: int


@dataclass(frozen=True, slots=True)
class _Policy:
    """``matches``: operator, lower-case field, value. ``lengths``: least and most bytes of the file."""

    expires_s: float
    matches: list[tuple[str, str, str]] = field(default_factory=list)
    lengths: list[tuple[int, int]] = field(default_factory=list)


def authenticate_form(authenticator: Authenticator, upload: Upload, *, now_s: float) -> Identity:
    """Who uploads; their policy is checked. Raises AuthError, InvalidRequest, BodyTooLarge."""
    policy = upload.fields.get("policy")
    if policy is None:
        if authenticator.anonymous:
            return ANONYMOUS
        raise AccessDenied("The form holds no policy", hint="sign one, or set auth.anonymous = true")
    identity = _signer(authenticator, upload.fields, policy)
    _check(policy, upload, now_s)
    return identity


def _signer(authenticator: Authenticator, fields: Mapping[str, str], policy: str) -> Identity:
    token = fields.get("x-amz-security-token")
    if "x-amz-signature" in fields:
        if fields.get("x-amz-algorithm") != ALGORITHM:
            raise MalformedAuth(f"The field x-amz-algorithm must be {ALGORITHM}")
        parts = fields.get("x-amz-credential", "").rsplit("/", 4)
        if len(parts) != 5 or parts[3:] != ["s3", "aws4_request"]:
            raise MalformedAuth(
                "The field x-amz-credential cannot be understood",
                hint="it must be KEY/YYYYMMDD/REGION/s3/aws4_request",
            )
        access_key, date, region = parts[:3]
        client = authenticator.client_of(access_key, token)
        if client is None:
            return ANONYMOUS
        key = signing_key(client.secret_key, Scope(date, region))
        computed = hmac.digest(key, policy.encode(), "sha256").hex()
        given = fields["x-amz-signature"]
    else:
        client = authenticator.client_of(fields.get("awsaccesskeyid", ""), token)
        if client is None:
            return ANONYMOUS
        digest = hmac.digest(client.secret_key.encode(), policy.encode(), hashlib.sha1)
        computed, given = base64.b64encode(digest).decode(), fields.get("signature", "")
    if not hmac.compare_digest(computed.encode(), given.encode()):
        raise SignatureMismatch(
            "The policy signature we calculated does not match the signature you provided",
            hint="check the secret key and the signing method",
        )
    return client.identity()


def _check(document: str, upload: Upload, now_s: float) -> None:
    policy = _parse(document)
    if now_s > policy.expires_s:
        raise AccessDenied("Invalid according to Policy: Policy expired.")
    values = {**upload.fields, "bucket": upload.bucket}
    covered = set(_UNCOVERED)
    for how, name, wanted in policy.matches:
        value = values.get(name, "")
        if not (value.startswith(wanted) if how == "starts-with" else value == wanted):
            raise AccessDenied(
                f'Invalid according to Policy: Policy Condition failed: ["{how}", "${name}", "{wanted}"]'
            )
        covered.add(name)
    extra = [name for name in upload.fields if name not in covered and not name.startswith("x-ignore-")]
    if extra:
        raise AccessDenied(f"Invalid according to Policy: Extra input fields: {', '.join(sorted(extra))}")
    for low, high in policy.lengths:
        if upload.length > high:
            raise BodyTooLarge(f"Your proposed upload exceeds the maximum allowed size of {high} bytes")
        if upload.length < low:
            raise InvalidRequest(
                f"Your proposed upload is smaller than the minimum allowed size of {low} bytes"
            )


def _parse(document: str) -> _Policy:
    try:
        parsed = json.loads(base64.b64decode(document, validate=True))
        expires = datetime.fromisoformat(parsed["expiration"])
        policy = _Policy((expires if expires.tzinfo else expires.replace(tzinfo=UTC)).timestamp())
        for entry in parsed["conditions"]:
            _add(policy, entry)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InvalidRequest(
            "Invalid Policy: it cannot be understood",
            hint="it must be base64 of a JSON object with expiration and conditions",
        ) from None
    return policy


def _add(policy: _Policy, entry: object) -> None:
    """One condition: an object of exact values, or a list. Raises ValueError, TypeError."""
    match entry:
        case dict():
            for name, wanted in entry.items():
                policy.matches.append(("eq", name.lower(), _text(wanted)))
        case [str(how), int(low), int(high)] if how.lower() == "content-length-range":
            policy.lengths.append((low, high))
        case [str(how), str(name), wanted] if how.lower() in {"eq", "starts-with"} and name.startswith("$"):
            policy.matches.append((how.lower(), name[1:].lower(), _text(wanted)))
        case _:
            raise ValueError(entry)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
