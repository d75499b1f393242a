"""Records demand reads for ``[telemetry] trace``: adds the time and the prefix group to each read.

Laws: only plain defs; nothing is decided here. The group of a hit is the group of its slot. If the slot has
another page by now, the read is recorded without a group. Readers of the trace then take the group from
another read of the object.
"""

from collections.abc import Iterator, Sequence

from shadeproxy.core.clock import Clock
from shadeproxy.core.identity import GroupName, group_name, object_hash
from shadeproxy.core.types import JobContext, ObjectRef, Source
from shadeproxy.engine.access_records import Kind, Uses
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.telemetry.recording import RecordedRead, Recording


class ReadRecorder:
    """Records reads of objects whose pages are in ``cache``."""

    def __init__(self, recording: Recording, cache: PageCache, clock: Clock) -> None:
        self._recording = recording
        self._cache = cache
        self._clock = clock
        self._names: list[str] = []

    def note(self, ref: ObjectRef, size_bytes: int, source: Source, job: JobContext | None) -> None:
        """Record one read of an object."""
        read = RecordedRead(object_hash(ref), size_bytes, job, source, _text(group_name(ref)))
        self._recording.note(read, self._clock.now_s())

    def note_uses(self, reads: Uses, kinds: Sequence[Kind], jobs: Sequence[JobContext | None]) -> None:
        """Record reads of the access log; the oldest comes first. ``jobs``: the job of each read."""
        self._recording.note_many(self._recorded(reads, kinds, jobs), self._clock.now_s())

    def _recorded(
        self, reads: Uses, kinds: Sequence[Kind], jobs: Sequence[JobContext | None]
    ) -> Iterator[RecordedRead]:
        table = self._cache.residents
        names = self._names
        if len(names) < len(self._cache.groups):
            names += map(_text, self._cache.groups.names[len(names) :])
        slots = reads["slot"]
        groups = table.group[slots].tolist()
        present = (table.stamp[slots] == reads["stamp"]).tolist()
        columns = (reads[name].tolist() for name in ("object_hash", "size_bytes", "kind"))
        for hashed, size_bytes, kind, job, group, here in zip(*columns, jobs, groups, present, strict=True):
            yield RecordedRead(hashed, size_bytes, job, kinds[kind].source, names[group] if here else None)


def _text(name: GroupName) -> str:
    """Return bucket and first key segment as text. Bytes of a key that are not valid UTF-8
    (``surrogateescape``) become question marks.
    """
    bucket, head, namespace = name
    text = f"{namespace}:{bucket}/{head}" if namespace else f"{bucket}/{head}"
    return text.encode("utf-8", "replace").decode()
