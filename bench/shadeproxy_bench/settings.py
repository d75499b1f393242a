"""The configuration of a proxy under measurement that speaks to one origin and caches in RAM alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def settings_of(
    directory: Path, endpoint: str, *, ram: int | str, rule: Mapping[str, str], page_bytes: int = 0
) -> dict[str, Any]:
    """Return settings of a proxy with files in ``directory``, free ports of loopback, anonymous clients, and
    no prefetching. ``ram``: capacity of the RAM tier. ``page_bytes``: 0 is the default of the product.
    """
    settings: dict[str, Any] = {
        "s3": {"listen": "127.0.0.1:0"},
        "control": {"listen": "127.0.0.1:0"},
        "origin": {"kind": "s3", "endpoint": endpoint, "credentials": {"source": "anonymous"}},
        "auth": {"anonymous": True},
        "cache": {
            "ram": {"path": str(directory / "ram"), "capacity": ram},
            "disk": {"path": str(directory / "disk"), "capacity": 0, "min_free": "0"},
        },
        "prefetch": {"enabled": False},
        "rules": [dict(rule)],
        "state": {"path": str(directory / "state")},
        "telemetry": {"log_level": "info", "log_format": "json"},
    }
    if page_bytes:
        settings["cache"]["page_size"] = page_bytes
    return settings
