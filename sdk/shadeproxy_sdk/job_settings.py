"""Checks the settings of a job that the user gives to ``Client.job``."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from shadeproxy_sdk.errors import ConfigError

NEEDS = frozenset({"slowdown", "samples_per_s", "deadline_s", "epochs", "best_effort"})
"""Fields of a job's need. docs/protocol.md explains each."""


def check_needs(needs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a job's need as a dict. Raises ConfigError for a field with an unknown name; the
    proxy checks the values.
    """
    wrong = sorted(set(needs or ()) - NEEDS)
    if wrong:
        raise ConfigError(f"needs has no {wrong[0]!r}: give one of {', '.join(sorted(NEEDS))}")
    return dict(needs or {})


def check_ranks(rank: Any, world_size: Any) -> None:
    """Raise ConfigError unless ``rank`` is one of ``world_size`` ranks."""
    if not isinstance(world_size, Integral) or int(world_size) < 1:
        raise ConfigError(f"world_size {world_size!r}: give the number of processes that train, at least 1")
    if not isinstance(rank, Integral) or not 0 <= int(rank) < int(world_size):
        raise ConfigError(f"rank {rank!r} is not in 0 .. {world_size - 1}: pass this process's own")


def check_delivery(weight: Any, interval_s: Any, queue_batches: Any) -> None:
    """Raise ConfigError for an argument of ``Client.job`` that would fail or be useless later."""
    if not isinstance(weight, Real) or not math.isfinite(float(weight)):
        raise ConfigError(f"weight {weight!r}: give a number, as 1.0")
    if not isinstance(interval_s, Real) or not 0 < float(interval_s) < math.inf:
        raise ConfigError(f"interval_s {interval_s!r}: give a number of seconds above 0")
    if not isinstance(queue_batches, Integral) or int(queue_batches) < 1:
        raise ConfigError(f"queue_batches {queue_batches!r}: give a whole number from 1 on")
