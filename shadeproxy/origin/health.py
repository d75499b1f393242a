"""What the origin's answers and failures say about it, noted in passing; nothing is asked for its sake.

One object for all wrappers of an origin. It decides nothing: who shows it, and who is told to worry, does.
"""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import NotS3, OriginAnswer, OriginError, OriginThrottled, Unidentified
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
    """``kind``: the class of a failure, or the code of an answer. ``at_s``: Unix time."""

    kind: str
    text: str
    at_s: float


class OriginHealth:
    """``clock_skew_s``: how much the origin's clock is ahead of ours, as its last Date said; None: unknown.

    ``failed``, ``throttled``: attempts, the repeated ones included. ``failure``: the last request that failed
    in the end; ``refusal``: the last credentials that were not accepted.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock_skew_s: float | None = None
        self.failed = 0
        self.throttled = 0
        self.failure: Trouble | None = None
        self.refusal: Trouble | None = None
        self.answering = True
        """Whether the last request to the origin got an answer; True before the first."""
        self._clock = clock
        self._look_s = 0.0

    @property
    def due(self) -> bool:
        """Whether ``heard_date`` would look: a Date is parsed once in ten seconds."""
        return self._clock.monotonic_s() >= self._look_s

    def heard_date(self, value: str) -> None:
        """The Date field of an answer; "" where it has none."""
        self._look_s = self._clock.monotonic_s() + _LOOK_EVERY_S
        try:
            # It has no fractions: on average half a second is cut off.
            self.clock_skew_s = parsedate_to_datetime(value).timestamp() + 0.5 - self._clock.now_s()
        except (ValueError, TypeError, OverflowError):
            return

    def attempt_failed(self, error: OriginError) -> None:
        """One attempt, which may be repeated."""
        self.failed += 1
        self.throttled += isinstance(error, OriginThrottled)

    def answered(self) -> None:
        """A request was answered in the end."""
        self.answering = True

    def gave_up(self, error: OriginError) -> None:
        """A request ended with ``error``. That something is not there, or not allowed, is an answer too."""
        if isinstance(error, OriginAnswer | NotS3 | Unidentified):
            self.answered()
            if isinstance(error, OriginAnswer) and error.code in CREDENTIAL_CODES:
                self.refusal = self._trouble(error.code, error)
        else:
            self.failure = self._trouble(type(error).__name__, error)
            self.answering = False

    def as_json(self) -> dict[str, Any]:
        """For ``GET /v1/stats``."""
        return {
            "answering": self.answering,
            "clock_skew_s": self.clock_skew_s,
            "attempts_failed": self.failed,
            "throttled": self.throttled,
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
