"""The faults of an origin on the wire, and the operations that each fault fits."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from shadeproxy_bench.reliability.kit.schedule import Schedule


class WireFault(StrEnum):
    """A fault of one answer. THROTTLE and REFUSE affect all answers for a while."""

    DELAY = "delay"
    ERROR_500 = "500 InternalError"
    ERROR_503 = "503 ServiceUnavailable"
    ERROR_429 = "429 TooManyRequests"
    THROTTLE = "throttle: 503 SlowDown for a while"
    NOT_HTTP = "an answer that is no HTTP"
    RESET = "connection reset instead of an answer"
    STALL_HEAD = "stall for ever before the answer"
    STALL_BODY = "stall for ever in the body"
    CUT = "body cut short"
    CUT_RESET = "body cut short by a reset"
    TRICKLE = "slow trickle"
    LENGTH_MORE = "Content-Length too long"
    LENGTH_LESS = "Content-Length too short"
    FLIP = "bit flip under a checksum"
    CHANGE = "new version in the middle of a read"
    CHANGE_UNASKED = "new version, If-Match ignored"
    LOST_ANSWER = "write done, answer lost"
    REFUSE_UPLOAD = "error before the upload was taken"
    OK_ERROR = "200 with an error document"
    REFUSE = "connections refused for a while"


READ, PAGED, RANGED, CHECKED, CHANGING = "read", "paged read", "ranged read", "checked read", "changing read"
HEAD, LIST, WRITE, FINISH, UPLOAD = "head", "list", "write", "finish", "upload"
"""Operations of the origin. READ: a whole body. PAGED: a body of several pages, which a reader need not read
to its end. RANGED: one range. CHECKED: a whole body with a checksum. CHANGING: a body of an object that may
change now, requested with If-Match. HEAD and LIST: a head; a listing. WRITE: a write, or a part of one.
FINISH: CopyObject or CompleteMultipartUpload. UPLOAD: the arrival of an upload's body, before its ``WRITE``.
"""

_READS = {READ, PAGED, RANGED, CHECKED, CHANGING}
_BODIES = {*_READS, LIST}
_ANY = {*_BODIES, HEAD, WRITE, FINISH}
FITS: Mapping[WireFault, frozenset[str]] = {
    kind: frozenset(operations)
    for kinds, operations in (
        (
            (
                WireFault.DELAY, WireFault.ERROR_500, WireFault.ERROR_503, WireFault.ERROR_429,
                WireFault.THROTTLE, WireFault.NOT_HTTP, WireFault.RESET, WireFault.STALL_HEAD,
                WireFault.REFUSE,
            ),
            _ANY,
        ),
        (
            (WireFault.STALL_BODY, WireFault.CUT, WireFault.CUT_RESET, WireFault.TRICKLE),
            _BODIES,
        ),
        # If a body is not read to its end, no reader can notice that the end is missing.
        ((WireFault.LENGTH_MORE,), _BODIES - {PAGED}),
        # A reader notices LENGTH_LESS by a stated range or a checksum, and FLIP by a checksum only.
        ((WireFault.LENGTH_LESS,), {RANGED, CHECKED}),
        ((WireFault.FLIP,), {CHECKED}),
        ((WireFault.CHANGE, WireFault.CHANGE_UNASKED), {CHANGING}),
        ((WireFault.LOST_ANSWER,), {WRITE, FINISH}),
        ((WireFault.REFUSE_UPLOAD,), {UPLOAD}),
        ((WireFault.OK_ERROR,), {FINISH}),
    )
    for kind in kinds
}  # fmt: skip

MORE_BYTES = 4096
"""Number of bytes by which a false Content-Length is too large."""

RATES: Mapping[WireFault, float] = {
    WireFault.DELAY: 0.01,
    WireFault.ERROR_500: 0.01,
    WireFault.ERROR_503: 0.006,
    WireFault.ERROR_429: 0.006,
    WireFault.THROTTLE: 0.0006,
    WireFault.NOT_HTTP: 0.003,
    WireFault.RESET: 0.006,
    WireFault.STALL_HEAD: 0.002,
    WireFault.STALL_BODY: 0.002,
    WireFault.CUT: 0.01,
    WireFault.CUT_RESET: 0.006,
    WireFault.TRICKLE: 0.004,
    WireFault.LENGTH_MORE: 0.004,
    WireFault.LENGTH_LESS: 0.006,
    WireFault.FLIP: 0.01,
    WireFault.CHANGE: 0.05,
    WireFault.CHANGE_UNASKED: 0.02,
    WireFault.LOST_ANSWER: 0.02,
    WireFault.REFUSE_UPLOAD: 0.02,
    WireFault.OK_ERROR: 0.1,
    WireFault.REFUSE: 0.0006,
}
"""Probability of each fault in an operation that it fits. It is higher for faults that fit few operations."""


def scheduled(
    *,
    script: Iterable[WireFault] = (),
    rates: Mapping[WireFault, float] | None = None,
    seed: int = 0,
    noted: Callable[[WireFault], None] = lambda _fault: None,
) -> Schedule[WireFault]:
    """Return a schedule of faults for the origin; see ``kit/schedule.py``."""

    def fits(kind: WireFault, operation: str) -> bool:
        return operation in FITS[kind]

    return Schedule(fits, script=script, rates=rates, seed=seed, noted=noted)
