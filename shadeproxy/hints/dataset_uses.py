"""The last use of each dataset: a call that registered the dataset or named it, or a read of its samples by
id.

Laws: a use through a job that is still registered is not noted here, because the job's own sign of life tells
it. Uses survive a restart, to within ``_STORED_EVERY_S``. Call it on the event loop only.
"""

from collections.abc import Callable

from shadeproxy.hints.jobs import DEFAULT_EXPIRES_S

KEPT_S = DEFAULT_EXPIRES_S
"""A dataset that no job in use names may be forgotten so long after its last use."""
_STORED_EVERY_S = 600.0


class DatasetUses:
    """Last uses by dataset, as Unix times. ``dirty`` is called with ("uses", name) when a use must be
    stored.
    """

    def __init__(self, dirty: Callable[[str, str], None]) -> None:
        self._used_s: dict[str, float] = {}
        self._stored_s: dict[str, float] = {}
        self._dirty = dirty

    def note(self, name: str, now_s: float) -> None:
        """Note a use of the dataset."""
        used_s = self._used_s[name] = max(now_s, self._used_s.get(name, now_s))
        if name not in self._stored_s or used_s - self._stored_s[name] >= _STORED_EVERY_S:
            self._stored_s[name] = used_s
            self._dirty("uses", name)

    def get(self, name: str) -> float | None:
        """Return the time of the last use; None if none is known."""
        return self._used_s.get(name)

    def restore(self, name: str, used_s: float) -> None:
        """Set the last use to the one that an earlier process stored."""
        self._used_s[name] = self._stored_s[name] = used_s

    def forget(self, name: str) -> None:
        """Drop the use of a dataset that is gone."""
        self._used_s.pop(name, None)
        self._stored_s.pop(name, None)
        self._dirty("uses", name)
