"""The training load of a soak: batches read through the SDK, by locate or by the batch call, and reports of
losses.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

import shadeproxy_sdk as shade
from shadeproxy_bench.reliability.kit.bodies import BUCKET, LARGEST_BYTES, PAGE_BYTES, DataSet
from shadeproxy_bench.reliability.kit.tally import FAULTS, Tally
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.requests import CLIENT
from shadeproxy_sdk.connections import Offers

_ROW_BYTES = 100_000
_WHOLE = (1, 4096, _ROW_BYTES, 1_000_000, PAGE_BYTES - 1, PAGE_BYTES + 1)
_SPLIT = (2 * PAGE_BYTES + 1, LARGEST_BYTES)
_PART_BYTES, _PART_STEP_BYTES = 65_537, 1_000_003
_BATCH = 64
_NEVER_S = 7200.0


class _Manifest:
    """A manifest and its samples. ``samples``: by sample id, the number of the object and the half-open range
    of bytes in it.
    """

    def __init__(self, data: DataSet, name: str, samples: Sequence[tuple[int, int, int]]) -> None:
        self.samples = samples
        entries = [
            shade.Entry(BUCKET, data.keys[number])
            if (start, stop) == (0, data.sizes[number])
            else shade.Entry(BUCKET, data.keys[number], start, stop - start)
            for number, start, stop in samples
        ]
        self.manifest = shade.Manifest.from_entries(name, entries)


class Excusing(TypedDict, total=False):
    """The argument ``excuse``: a function that returns the outcome of a read that failed."""

    excuse: Callable[[shade.ShadeError], str]


def _inexcusable(_error: shade.ShadeError) -> str:
    return "error"


class Trainer:
    """The training of one thread. ``way``: "locate" or "batch"; samples that do not come this way are read by
    GETs. ``excuse``: a function that returns the outcome of a read that failed.
    """

    def __init__(
        self,
        way: str,
        control_url: str,
        *,
        data: DataSet,
        versions: Versions,
        tally: Tally,
        seed: int,
        excuse: Callable[[shade.ShadeError], str] = _inexcusable,
    ) -> None:
        self._excuse = excuse
        self._way, self._data, self._versions, self._tally = way, data, versions, tally
        self._random = random.Random(seed)
        keys = shade.Credentials(CLIENT.access_key, CLIENT.secret_key)
        self._client = shade.Client(
            control_url, credentials=keys, retry_s=_NEVER_S if way == "batch" else 1.0
        )
        if way == "batch":
            told = json.loads(self._client.call("GET", "/v1/info").body)
            # The proxy's offers decide how the client reads. Leave only the offer of batches.
            self._client.connections.transport.offers = Offers(
                batch=True, locate=False, socket=told.get("socket")
            )
        whole = [(number, 0, size) for size in _WHOLE for number in data.ranges[size]]
        rows = [(number, 0, _ROW_BYTES) for number in data.ranges[_ROW_BYTES]]
        parts = [
            (number, start, start + _PART_BYTES)
            for size in _SPLIT
            for number in data.ranges[size]
            for start in range(7, size - _PART_BYTES, _PART_STEP_BYTES)
        ]
        self._whole, self._rows, self._parts = (
            _Manifest(data, f"soak-{way}-{name}", samples)
            for name, samples in (("whole", whole), ("rows", rows), ("parts", parts))
        )
        for one in (self._whole, self._rows, self._parts):
            self._client.register(one.manifest)
        self._job = self._client.job(f"soak-{way}", dataset=self._rows.manifest)

    def step(self) -> None:
        """Read one batch: of whole objects, of rows for one tensor, or of parts of objects, drawn at
        random.
        """
        form = self._random.choice((self._read_whole, self._read_rows, self._read_rows, self._read_parts))
        form()

    def leave(self) -> None:
        """Close the job and the client, even if some reports were not delivered."""
        self._job.close()
        self._client.close()

    def close(self) -> None:
        """Close the job, which delivers its reports; count the reports; close the client."""
        self._job.close()
        stats = self._job.stats()
        self._tally.answered("scores", count=stats.sent)
        if stats.failures or stats.rejected or stats.unsent:
            self._tally.failed("scores", "error", f"{stats}")
        self._client.close()

    def _read_whole(self) -> None:
        self._read(self._whole, _BATCH // 4, with_copy=self._random.random() < 0.5)

    def _read_parts(self) -> None:
        self._read(self._parts, _BATCH // 2, with_copy=False)

    def _read(self, source: _Manifest, count: int, *, with_copy: bool) -> None:
        ids = self._draw(source, count)
        before = self._before(source, ids)
        try:
            read = self._client.read_many if with_copy else self._client.views
            samples = read(source.manifest, ids)
        except shade.ShadeError as error:
            self._failed(error)
            return
        self._judge(source, ids, before, [np.frombuffer(sample, np.uint8) for sample in samples])

    def _read_rows(self) -> None:
        ids = self._draw(self._rows, _BATCH)
        before = self._before(self._rows, ids)
        out = np.empty((len(ids), _ROW_BYTES), np.uint8)
        try:
            self._client.read_into(self._rows.manifest, ids, out)
        except shade.ShadeError as error:
            self._failed(error)
            return
        self._judge(self._rows, ids, before, list(out))
        self._job.report(np.array(ids), np.array([self._random.expovariate(1.0) for _ in ids]))

    def _failed(self, error: shade.ShadeError) -> None:
        outcome = self._excuse(error)
        self._tally.failed(self._way, outcome, str(error) if outcome in FAULTS else "")

    def _draw(self, source: _Manifest, count: int) -> list[int]:
        return [self._random.randrange(len(source.samples)) for _ in range(count)]

    def _before(self, source: _Manifest, ids: list[int]) -> list[int]:
        return [self._versions.acknowledged(source.samples[sample_id][0]) for sample_id in ids]

    def _judge(
        self, source: _Manifest, ids: list[int], before: list[int], samples: Sequence[NDArray[np.uint8]]
    ) -> None:
        right = compared_bytes = 0
        for sample_id, oldest, sample in zip(ids, before, samples, strict=True):
            number, start, stop = source.samples[sample_id]
            newest = self._versions.started(number)
            if any(
                np.array_equal(sample, np.frombuffer(self._data.body(number, version)[start:stop], np.uint8))
                for version in range(oldest, newest + 1)
            ):
                right += 1
                compared_bytes += len(sample)
            else:
                what = f"{self._data.keys[number]} {start}-{stop}: no version {oldest} .. {newest}"
                self._tally.failed(self._way, "wrong", what)
        self._tally.answered(self._way, compared_bytes, count=right)
