"""Browser uploads with signed policies, as one more scene like those in operations.py.

Of the answer to an upload, only status and error code are compared. Servers choose the fields and the
Location of a 204 or 201 themselves. moto checks no policy, so this scene is played only at servers that do.
"""

import base64
import hmac
import json
from datetime import UTC, datetime, timedelta

from shadeproxy.core.sigv4 import Scope, signing_key

from .operations import Play
from .wire import Request


def form_uploads(play: Play) -> None:
    """Play form uploads. Uploads that the policy permits are stored, and all others are refused with the same
    code.
    """
    allowed = {"Content-Type": "text/x", "x-amz-meta-form": "1"}
    for status in ("204", "201", "200"):
        _post(play, {"key": f"form/{status}", "success_action_status": status, **allowed})
        play.send("GET", f"/form/{status}")
    _post(play, {"key": "form/${filename}", **allowed})
    play.send("HEAD", "/form/a.txt")
    _post(play, {"key": "form/empty", **allowed}, file=b"")
    play.send("GET", "/form/empty")
    _post(play, {"key": "elsewhere", **allowed})
    _post(play, {"key": "form/x", **allowed}, expires_s=-60)
    _post(play, {"key": "form/x", **allowed}, file=b"x" * 1001)
    play.send("GET", "/form/x")


def _post(
    play: Play,
    fields: dict[str, str],
    *,
    file: bytes = b"of a form",
    expires_s: int = 600,
) -> None:
    now = datetime.now(UTC)
    credentials = play.peer.credentials
    scope = Scope(f"{now:%Y%m%d}", "us-east-1")
    signing = {
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": f"{credentials.access_key}/{scope}",
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
    }
    conditions = [
        {"bucket": play.bucket},
        ["starts-with", "$key", "form/"],
        ["starts-with", "$success_action_status", ""],
        ["content-length-range", 0, 1000],
        ["eq", "$Content-Type", "text/x"],
        *({name: value} for name, value in signing.items()),
        {"x-amz-meta-form": "1"},
    ]
    until = now + timedelta(seconds=expires_s)
    document = {"expiration": f"{until:%Y-%m-%dT%H:%M:%S}.000Z", "conditions": conditions}
    policy = base64.b64encode(json.dumps(document).encode()).decode()
    signed = hmac.digest(signing_key(credentials.secret_key, scope), policy.encode(), "sha256").hex()
    given = {**fields, **signing, "policy": policy, "x-amz-signature": signed}
    parts = [
        f'--XyZ\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in given.items()
    ]
    parts.append('--XyZ\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n')
    body = "".join(parts).encode() + file + b"\r\n--XyZ--\r\n"
    kind = ("Content-Type", "multipart/form-data; boundary=XyZ")
    play.note(Request("POST", f"/{play.bucket}", (kind,), body, signed=False), briefly=True)
