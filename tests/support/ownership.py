"""An ``Ownership`` whose answers a test sets, and an origin whose checks take long."""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.types import ObjectMeta, ObjectRef
from shadeproxy.engine.ownership import Began, Standing
from shadeproxy.origin.memory import MemoryOrigin


def all_kept(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Keep the trust in every object, as a rise of the epoch that concerns none of them does."""
    return np.ones(len(hashes), np.bool_)


class SetOwnership:
    """Every object is OWN and mine, unless a test says otherwise.

    ``lost``: objects that are not ``mine`` although they are to be written here. ``elsewhere``: objects that
    another proxy writes. ``waited``: the arguments of ``wait_until_mine``. ``buckets``: the arguments of
    ``distrust_bucket``, which raises ``refusal`` if there is one.
    """

    def __init__(self) -> None:
        self.lease_s = inf
        self.epoch = 0
        self.lost: set[ObjectRef] = set()
        self.elsewhere: set[ObjectRef] = set()
        self.waited: list[list[ObjectRef]] = []
        self.buckets: list[tuple[str, str]] = []
        self.refusal: ShadeProxyError | None = None
        self._standings: dict[ObjectRef, Standing] = {}
        self._since: dict[ObjectRef, int] = {}
        self._instant = 0

    def set(self, ref: ObjectRef, standing: Standing) -> None:
        """Change a standing by time alone, without a rise of the epoch."""
        self._standings[ref], self._since[ref] = standing, self._now()

    def standing(self, ref: ObjectRef) -> Standing:
        return self._standings.get(ref, Standing.OWN)

    def may_store(self, ref: ObjectRef) -> bool:
        return self.standing(ref) is not Standing.FOREIGN

    def own_for_s(self, ref: ObjectRef) -> float:
        return self.lease_s if self.standing(ref) is Standing.OWN else 0.0

    def begin(self) -> Began:
        return Began(self.epoch, self._now())

    def trusts(self, ref: ObjectRef, began: Began) -> bool:
        is_own = self.standing(ref) is Standing.OWN and self._since.get(ref, -1) < began.at_s
        return is_own and began.epoch == self.epoch

    def mine(self, ref: ObjectRef) -> bool:
        return ref not in self.lost and ref not in self.elsewhere

    def writes_here(self, ref: ObjectRef) -> bool:
        return ref not in self.elsewhere

    async def wait_until_mine(self, refs: Sequence[ObjectRef]) -> bool:
        self.waited.append(list(refs))
        return all(map(self.mine, refs))

    async def distrust_bucket(self, bucket: str, namespace: str) -> None:
        self.buckets.append((bucket, namespace))
        if self.refusal is not None:
            raise self.refusal

    def _now(self) -> int:
        self._instant += 1
        return self._instant


class HeldOrigin(MemoryOrigin):
    """Answers a HEAD with the version at its beginning, but only when ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.holds = True

    async def head(self, ref: ObjectRef, **options: Any) -> ObjectMeta:
        meta = await super().head(ref, **options)
        if self.holds:
            self.asked.set()
            await self.go.wait()
        return meta
