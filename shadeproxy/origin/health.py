"""The state of the origin, as answers and failures of requests and probes show it.

All wrappers of an origin share one ``OriginHealth``. It decides nothing; statistics and warnings show it.
"""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import inf
from typing import Any

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import (
    NotS3,
    OriginAnswer,
    OriginError,
    OriginThrottled,
    OtherRegion,
    Unidentified,
)
from shadeproxy.telemetry.log import mask_text

CREDENTIAL_CODES = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "RequestTimeTooSkewed",
    }
)
_LOOK_EVERY_S = 10.0
_MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failure or a refusal. ``kind``: the class of the failure, or the code of the refusal. ``at_s``: Unix
    time.
    """

    kind: str
    text: str
    at_s: float


class OriginHealth:
    """The state of one origin. ``clock_skew_s``: seconds by which the origin's clock is ahead of the proxy's,
    according to a recent Date field; None if unknown.

    ``failed`` and ``throttled`` count attempts; a request may make several. ``failure``: the last request
    that failed after all its attempts. ``refusal``: the last refusal of credentials. ``probes``: the number
    of requests that were sent only to learn the state.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock_skew_s: float | None = None
        self.failed = 0
        self.throttled = 0
        self.probes = 0
        self.failure: Trouble | None = None
        self.refusal: Trouble | None = None
        self.answering: bool | None = None
        """True if the last request to the origin was answered; None until a request has ended."""
        self.known_s = -inf
        """Monotonic time at which the last request ended, with or without an answer."""
        self._clock = clock
        self._look_s = 0.0

    @property
    def due(self) -> bool:
        """True if ten seconds have passed since ``heard_date`` was called, so that it needs the next Date."""
        return self._clock.monotonic_s() >= self._look_s

    def heard_date(self, value: str) -> None:
        """Measure the clock skew by ``value``: the Date field of an answer, or "" if the answer has none."""
        self._look_s = self._clock.monotonic_s() + _LOOK_EVERY_S
        try:
            # A Date has whole seconds only, so half a second was cut off on average. Add it.
            self.clock_skew_s = parsedate_to_datetime(value).timestamp() + 0.5 - self._clock.now_s()
        except (ValueError, TypeError, OverflowError):
            return

    def attempt_failed(self, error: OriginError) -> None:
        """Count a failed attempt of a request, which may be tried again."""
        self.failed += 1
        self.throttled += isinstance(error, OriginThrottled)

    def answered(self) -> None:
        """Note that a request was answered, after one attempt or several."""
        self.answering = True
        self.known_s = self._clock.monotonic_s()

    def gave_up(self, error: OriginError) -> None:
        """Note that a request ended with ``error``. Some errors, such as a 404 or 403, are answers and no
        failures.
        """
        if isinstance(error, OriginAnswer | NotS3 | OtherRegion | Unidentified):
            self.answered()
            if isinstance(error, OriginAnswer) and error.code in CREDENTIAL_CODES:
                self.refusal = self._trouble(error.code, error)
        else:
            self.failure = self._trouble(type(error).__name__, error)
            self.answering = False
            self.known_s = self._clock.monotonic_s()

    def as_json(self) -> dict[str, Any]:
        """Return the values for ``GET /v1/stats``."""
        return {
            "answering": self.answering,
            "clock_skew_s": self.clock_skew_s,
            "attempts_failed": self.failed,
            "throttled": self.throttled,
            "probes": self.probes,
            "last_failure": self._shown(self.failure),
            "last_refusal": self._shown(self.refusal),
        }

    def age_s(self, trouble: Trouble) -> float:
        return max(0.0, self._clock.now_s() - trouble.at_s)

    def _trouble(self, kind: str, error: OriginError) -> Trouble:
        return Trouble(kind, mask_text(str(error))[:_MOST_TEXT], self._clock.now_s())

    def _shown(self, trouble: Trouble | None) -> dict[str, Any] | None:
        if trouble is None:
            return None
        return {"kind": trouble.kind, "text": trouble.text, "age_s": self.age_s(trouble)}
