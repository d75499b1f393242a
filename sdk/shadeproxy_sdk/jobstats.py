"""Counts of a job about itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobStats:
    """Counts since the job began.

    ``reported``: batches given to ``report``; ``dropped``: of these, pushed out of a full queue;
    ``rejected``: of these, invalid; ``not_finite``: samples whose loss was nan or inf, or of which no token
    counted; ``sent``: scores that the proxy took; ``unsent``: scores that wait; ``announced``: ids of orders
    that the proxy took; ``failures``: calls to the proxy that failed.
    """

    reported: int
    dropped: int
    rejected: int
    not_finite: int
    sent: int
    unsent: int
    announced: int
    failures: int
