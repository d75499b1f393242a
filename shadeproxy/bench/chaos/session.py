"""What a raw client takes for a failure that can be repeated, and what not."""

import time
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from shadeproxy.bench.soak.link import Answer, Cut, Silent
from shadeproxy.bench.soak.session import Asked, Session

RETRIED_CODES = frozenset({"InternalError", "ServiceUnavailable", "SlowDown", "TooManyRequests"})
"""Which the SDKs of S3 repeat by themselves."""
_AGAIN_S = 0.1


class HardenedSession(Session):
    """A session that lives with connections that break and answers that say "not now"."""

    def broken(self, asked: Asked, error: Cut | OSError) -> str:  # noqa: ARG002 (the base's signature)
        if isinstance(error, Silent):
            return "hang"
        if isinstance(error, ConnectionRefusedError):
            # Nobody listens: the proxy was killed.
            time.sleep(_AGAIN_S)
            return "connection refused"
        return "cut"

    def refused(self, asked: Asked, answer: Answer) -> str | None:
        if answer.status < 500 and answer.status != 429:
            return None
        if asked.kind == "head":
            return f"{answer.status} to a HEAD"
        code = error_code(answer.document)
        patient = answer.status != 503 or "retry-after" in answer.fields or asked.kind == "put"
        return f"{answer.status} {code}" if code in RETRIED_CODES and patient else "error"


def error_code(document: bytes) -> str:
    """The code of an S3 error document; "" when it is none."""
    try:
        root = fromstring(document)
    except (ParseError, DefusedXmlException):
        return ""
    return root.findtext("{*}Code") or "" if root.tag.endswith("Error") else ""
