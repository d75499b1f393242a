"""POST policies: signed documents that allow a browser to upload.

Only the policy is signed, not the form. So a condition of the policy must cover each form field; a form with
any other field is refused. Anonymous uploads are refused, because a page of any site can make a browser send
a form. Source: "Creating a POST policy" in the S3 API reference. If the reference says nothing, this module
does what Ceph RGW does.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.auth.clients import ClientKey, Identity
from shadeproxy.core.errors import (
    AccessDenied,
    BodyTooLarge,
    InvalidRequest,
    MalformedAuth,
    SignatureMismatch,
    UnknownAccessKey,
)
from shadeproxy.core.sigv4 import ALGORITHM, Scope, signing_key

# Fields that need no condition.
_UNCOVERED = frozenset({"awsaccesskeyid", "policy", "signature", "x-amz-signature"})
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:(?:\.\d{1,9})?Z)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_NEEDS_CLIENT = "Form uploads are not taken anonymously"
_NEEDS_CLIENT_HINT = "sign a policy for the form as one of [[auth.clients]]"


@dataclass(frozen=True, slots=True)
class Upload:
    """A form upload. ``fields``: values by lower-case name. ``length``: bytes of the file. ``key``: the
    object's key, in which ``${filename}`` has been replaced.
    """

    bucket: str
    key: str
    fields: Mapping[str, str]
    length: int


@dataclass(frozen=True, slots=True)
class _Policy:
    """A parsed policy. ``matches``: conditions on fields, each as operator, lower-case field name and value.
    ``lengths``: least and most bytes that the file may have.
    """

    expires_s: float
    matches: list[tuple[str, str, str]] = field(default_factory=list)
    lengths: list[tuple[int, int]] = field(default_factory=list)


def authenticate_form(authenticator: Authenticator, upload: Upload, *, now_s: float) -> Identity:
    """Check the policy of an upload, and return the client that signed it. Raises AuthError, InvalidRequest,
    BodyTooLarge.
    """
    policy = upload.fields.get("policy")
    if policy is None:
        raise AccessDenied(f"The form holds no policy. {_NEEDS_CLIENT}", hint=_NEEDS_CLIENT_HINT)
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
        client = _named(authenticator, access_key, token)
        key = signing_key(client.secret_key, Scope(date, region))
        computed = hmac.digest(key, policy.encode(), "sha256").hex()
        given = fields["x-amz-signature"]
    else:
        for name in ("AWSAccessKeyId", "signature"):
            if name.lower() not in fields:
                raise InvalidRequest(
                    f"The form holds a policy, but no field named {name} (or x-amz-signature)",
                    hint="write the fields of the signature before the file",
                )
        client = _named(authenticator, fields["awsaccesskeyid"], token)
        digest = hmac.digest(client.secret_key.encode(), policy.encode(), hashlib.sha1)
        computed, given = base64.b64encode(digest).decode(), fields["signature"]
    if not hmac.compare_digest(computed.encode(), given.encode()):
        raise SignatureMismatch(
            "The policy signature we calculated does not match the signature you provided",
            hint="check the secret key and the signing method",
        )
    return client.identity()


def _named(authenticator: Authenticator, access_key: str, token: str | None) -> ClientKey:
    client = authenticator.client_of(access_key, token)
    if client is None:
        raise UnknownAccessKey(
            f"The access key Id you provided does not exist in our records. {_NEEDS_CLIENT}",
            hint=_NEEDS_CLIENT_HINT,
        )
    return client


def _check(document: str, upload: Upload, now_s: float) -> None:
    policy = _parse(document)
    if now_s > policy.expires_s:
        raise AccessDenied("Invalid according to Policy: Policy expired.")
    values = {**upload.fields, "bucket": upload.bucket, "key": upload.key}
    covered = set(_UNCOVERED)
    for how, name, wanted in policy.matches:
        value = values.get(name, "")
        if not (value.startswith(wanted) if how == "starts-with" else value == wanted):
            raise AccessDenied(
                f'Invalid according to Policy: Policy Condition failed: ["{how}", "${name}", "{wanted}"]'
            )
        covered.add(name)
    extra = [name for name in values if name not in covered and not name.startswith("x-ignore-")]
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
        parsed = json.loads(base64.b64decode(document, validate=True), object_pairs_hook=_once_each)
        policy = _Policy(_time(parsed["expiration"]))
        for entry in parsed["conditions"]:
            _add(policy, entry)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InvalidRequest(
            "Invalid Policy: it cannot be understood",
            hint="it must be base64 of a JSON object with expiration and conditions",
        ) from None
    return policy


def _time(text: str) -> float:
    """Parse a date as S3 writes it, in UTC, into Unix time. Raises ValueError, TypeError."""
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp()


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a dict of ``pairs``, a JSON object's names and values. Raises ValueError if a name occurs twice,
    because parsers disagree on which value counts.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(pairs)
    return found


def _add(policy: _Policy, entry: object) -> None:
    """Add a condition to ``policy``. ``entry``: an object with one exact value, or a list. Raises ValueError,
    TypeError.
    """
    match entry:
        case dict():
            ((name, wanted),) = entry.items()
            policy.matches.append(("eq", name.lower(), _text(wanted)))
        case [str(how), low, high] if how.lower() == "content-length-range":
            policy.lengths.append((_number(low), _number(high)))
        case [str(how), str(name), wanted] if how.lower() in {"eq", "starts-with"} and name.startswith("$"):
            policy.matches.append((how.lower(), name[1:].lower(), _text(wanted)))
        case _:
            raise ValueError(entry)


def _number(value: object) -> int:
    """Return a number of bytes, which is a JSON number or, in policies of some clients, a string. Raises
    ValueError.
    """
    if isinstance(value, bool) or not _NUMBER.fullmatch(str(value)):
        raise ValueError(value)
    return int(str(value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
