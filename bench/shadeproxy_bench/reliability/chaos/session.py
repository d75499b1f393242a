"""A raw client's session under faults: it decides which failures of requests are allowed."""

import time
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from shadeproxy_bench.reliability.chaos.wire import MORE_BYTES
from shadeproxy_bench.reliability.kit.link import Answer, Cut, Silent
from shadeproxy_bench.reliability.soak.session import Asked, Session, Wrong

RETRIED_CODES = frozenset({"InternalError", "ServiceUnavailable", "SlowDown", "TooManyRequests"})
"""Error codes after which the SDKs of S3 repeat a request by themselves."""
CLAIMED = "right bytes, total as the origin claimed"
_AGAIN_S = 0.1


class HardenedSession(Session):
    """A session that allows broken connections, and answers that mean "not now"."""

    def broken(self, asked: Asked, error: Cut | OSError) -> str:  # noqa: ARG002 (the base's signature)
        if isinstance(error, Silent):
            return "hang"
        if isinstance(error, ConnectionRefusedError):
            # No process listens, because the proxy was killed and starts again.
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

    def _judge(self, asked: Asked, answer: Answer) -> None:
        total, claim = (str(self.data.sizes[asked.number] + more) for more in (0, MORE_BYTES))
        unit, _, told = answer.fields.get("content-range", "").rpartition("/")
        if answer.status == 206 and told == claim:
            # The origin's body may end too early after the proxy has sent a part of it. By then the proxy
            # could not know that the total which the origin stated is too large.
            fields = answer.fields | {"content-range": f"{unit}/{total}"}
            try:
                self._compare(asked, answer._replace(fields=fields))
            except Wrong:
                pass  # The unchanged answer is judged below.
            else:
                self.failed(asked.kind, CLAIMED, "")
                return
        super()._judge(asked, answer)


def error_code(document: bytes) -> str:
    """Return the code of an S3 error document; "" if the document is not an S3 error."""
    try:
        root = fromstring(document)
    except (ParseError, DefusedXmlException):
        return ""
    return root.findtext("{*}Code") or "" if root.tag.endswith("Error") else ""
