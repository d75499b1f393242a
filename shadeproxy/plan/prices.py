"""Prices of a run, read from a file of the user. No prices are built in, because they differ and change.

The file is TOML: ``date`` and ``currency``; ``[origin]`` with ``per_1000_requests`` and ``per_gib``;
``[cache]`` with ``per_gib_hour``; and a table ``[instances.NAME]`` for each machine that may train. The table
has ``per_hour`` and ``speed``, the machine's speed of training as a multiple of the profiled machine's.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from shadeproxy.core.errors import ConfigError
from shadeproxy.plan.toml_file import load_toml

_Price = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_GIB = 1 << 30
_HOUR_S = 3600.0


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that trains. ``speed``: its speed of training, as a multiple of the profiled machine's."""

    per_hour: _Price
    speed: Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)] = 1.0


class OriginPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    per_1000_requests: _Price = 0.0
    per_gib: _Price = 0.0


class CachePrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    per_gib_hour: _Price = 0.0


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prices of a run's parts. ``date``: when they were valid."""

    instances: dict[str, Instance]
    date: str = ""
    currency: str = "$"
    origin: OriginPrices = OriginPrices()
    cache: CachePrices = CachePrices()


class Cost(msgspec.Struct, frozen=True):
    """The cost of a run: for training machines, cache and origin."""

    training: float
    cache: float
    origin: float

    @property
    def total(self) -> float:
        return self.training + self.cache + self.origin


def cost(
    prices: Prices,
    instance: str,
    *,
    run_s: float,
    cache_bytes: float,
    requests: float,
    origin_bytes: float,
    world_size: int,
) -> Cost:
    """Return the cost of a run of ``run_s`` seconds on ``world_size`` machines of the kind ``instance``."""
    hours = run_s / _HOUR_S
    return Cost(
        training=hours * prices.instances[instance].per_hour * world_size,
        cache=hours * cache_bytes / _GIB * prices.cache.per_gib_hour,
        origin=requests / 1000 * prices.origin.per_1000_requests
        + origin_bytes / _GIB * prices.origin.per_gib,
    )


def load_prices(path: Path) -> Prices:
    """Read a file of prices (I/O). Raises ConfigError, whose text names the mistake."""
    prices = load_toml(
        path,
        Prices,
        option="--prices",
        form="[instances.NAME] per_hour, [origin] per_1000_requests and per_gib, [cache] per_gib_hour",
    )
    if not prices.instances:
        raise ConfigError(f"--prices {path} names no instance: add [instances.NAME] with per_hour")
    return prices
