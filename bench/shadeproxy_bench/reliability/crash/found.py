"""The result of a crash run."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Found:
    """The counts of a run. ``stops``: proxies that ended in order. ``refused``: starts that failed because of
    damage. ``homes``: sets of directories that were used. ``compared``: answers compared with the truth.
    ``told``: rounds of control state that were sent. ``pages_expected``: pages that had to survive a restart;
    ``pages_found``: pages that did. ``phases``: for each phase, the number of proxies that kill -9 ended in
    it. ``failures``: descriptions of what went wrong.
    """

    seed: int
    wanted: int
    kills: int = 0
    stops: int = 0
    starts: int = 0
    refused: int = 0
    homes: int = 0
    compared: int = 0
    told: int = 0
    right_by_sdk: int = 0
    sdk_kills: int = 0
    origin_kills: int = 0
    survival_checks: int = 0
    pages_expected: int = 0
    pages_found: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    damaged: Counter[tuple[str, str]] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
