"""Rendezvous hashing: every node computes the same owner of an object, without a table.

Each node has a score for each object, from the hash of both alone, and the node with the smallest score owns
the object. A node that joins takes objects from all others, in proportion to its weight. A node that leaves
gives its objects to all others. No object moves between nodes that stay (Thaler and Ravishankar 1998).

The score is -ln(u) / weight, where u is a number in (0, 1) made of the hash. The probability that a node owns
an object is then the node's share of all weights (Schindelhauer and Schomaker 2005). Nodes must agree to the
last bit. So the logarithm is computed here with operations that IEEE 754 rounds alike everywhere; the
logarithms of C libraries and of numpy differ in the last bit. The function for one object and the function
for columns do the same operations. Nodes of equal weight are compared by u itself.
"""

import math
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_STEP, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LN2 = 0.6931471805599453
_BITS = 26
"""u is a multiple of 2^-26. So the logarithms of two values differ by at least 1.4e-8, while the error of a
computed one is below 1e-9. The computed logarithm therefore rises strictly with u, and nodes of equal weight
may be compared by u itself.
"""
_ODD = tuple(1.0 / power for power in range(15, 0, -2))
"""Coefficients of artanh(s) / s = 1 + s^2/3 + s^4/5 + ..., highest power first; |s| is at most 1/3."""
_BLOCK = 1 << 16
"""Number of objects whose owners are computed at a time. The columns of so many fit into the processor's
cache.
"""

Hashes = NDArray[np.uint64]


class Rendezvous:
    """The scores of fixed nodes. ``nodes``: names, in the same order at all nodes. ``weights``: each at least
    0; a node of weight 0 owns nothing, unless all weights are 0.
    """

    def __init__(self, nodes: Sequence[str], weights: Sequence[float]) -> None:
        shared = any(weight > 0 for weight in weights)
        kept = [
            (node, weight if shared else 1.0)
            for node, weight in zip(nodes, weights, strict=True)
            if weight > 0 or not shared
        ]
        self.nodes = tuple(node for node, _ in kept)
        self.weights = tuple(float(weight) for _, weight in kept)
        self._seeds = tuple((node, xxhash.xxh3_64_intdigest(node.encode())) for node in self.nodes)
        self._equal = len(set(self.weights)) <= 1

    def find(self, object_hash: int) -> str | None:
        """Return the name of the owner of an object, given its 64-bit hash; None if there are no nodes."""
        owner = None
        if self._equal:
            highest = -1
            for node, seed in self._seeds:
                bits = _mix(object_hash ^ seed)
                if bits > highest:
                    highest, owner = bits, node
            return owner
        lowest = math.inf
        for (node, seed), weight in zip(self._seeds, self.weights, strict=True):
            score = _negative_log(_mix(object_hash ^ seed)) / weight
            if score < lowest:
                lowest, owner = score, node
        return owner

    def find_many(self, hashes: Hashes) -> NDArray[np.int16]:
        """Return for each object hash the position of its owner in ``nodes``; -1 if there are no nodes."""
        owners = np.full(len(hashes), -1, np.int16)
        for start in range(0, len(hashes), _BLOCK):
            self._find_block(hashes[start : start + _BLOCK], owners[start : start + _BLOCK])
        return owners

    def _find_block(self, hashes: Hashes, owners: NDArray[np.int16]) -> None:
        lowest = np.full(len(hashes), np.inf)
        for place, ((_, seed), weight) in enumerate(zip(self._seeds, self.weights, strict=True)):
            bits = _mix_many(hashes ^ np.uint64(seed))
            scores = -bits.astype(np.float64) if self._equal else _negative_logs(bits) / weight
            better = scores < lowest
            lowest[better] = scores[better]
            owners[better] = place


def _mix(value: int) -> int:
    """Return the upper bits of SplitMix64's output for a 64-bit state."""
    value = (value + _STEP) & _MASK
    value = ((value ^ value >> 30) * _MIX1) & _MASK
    value = ((value ^ value >> 27) * _MIX2) & _MASK
    return (value ^ value >> 31) >> 64 - _BITS


def _mix_many(values: Hashes) -> Hashes:
    values = values + np.uint64(_STEP)
    values ^= values >> np.uint64(30)
    values *= np.uint64(_MIX1)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_MIX2)
    values ^= values >> np.uint64(31)
    return values >> np.uint64(64 - _BITS)


def _negative_log(bits: int) -> float:
    """Return -ln(u) for u = (bits + 1/2) / 2^26."""
    mantissa, exponent = math.frexp(bits + 0.5)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    total = 0.0
    for coefficient in _ODD:
        total = total * square + coefficient
    return (_BITS - exponent) * _LN2 - 2.0 * ratio * total


def _negative_logs(bits: Hashes) -> NDArray[np.float64]:
    mantissas, exponents = np.frexp(bits + 0.5)
    ratios = (mantissas - 1.0) / (mantissas + 1.0)
    squares = ratios * ratios
    total = np.zeros(len(bits))
    for coefficient in _ODD:
        total *= squares
        total += coefficient
    logs: NDArray[np.float64] = (_BITS - exponents) * _LN2 - 2.0 * ratios * total
    return logs
