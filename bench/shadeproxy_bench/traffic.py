"""Traces of stock traffic, which no job announces: reads of popular objects, of new objects, in loops, and of
objects that are never read again.

The functions are pure: the same arguments give the same trace. Every client is a stock client, even one that
trains.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import Orders, interleaved, lagged, shards, shuffled

Reads = NDArray[np.int64]

_NEWEST = 5000  # number of newest objects, from which the recent objects are drawn
_NEW_SHARE = 0.1


def zipf_reads(
    random: np.random.Generator, objects: int, reads: int, exponent: float, *, every: int = 0
) -> Reads:
    """Return reads of ``objects`` objects, as ids. The k-th most popular object is read in proportion to ``k
    ** -exponent``.

    ``every``: number of reads after which objects change their popularity at random; 0: never.
    """
    odds = np.arange(1.0, objects + 1) ** -exponent
    ranks = random.choice(objects, reads, p=odds / odds.sum())
    starts = range(0, reads, every or max(reads, 1))
    return np.concatenate([
        random.permutation(objects)[ranks[start : start + (every or reads)]] for start in starts
    ])  # fmt: skip


def stock(ids: Reads, objects: int | None = None) -> Trace:
    """Return the trace of one stock client that reads ``ids``."""
    return Trace(ids.astype(np.uint32), int(ids.max()) + 1 if objects is None else objects, stock=(0,))


def zipf(objects: int, reads: int, exponent: float, *, every: int = 0, seed: int = 0) -> Trace:
    """Return the trace of Zipf traffic. ``every``: see ``zipf_reads``."""
    return stock(zipf_reads(np.random.default_rng(seed), objects, reads, exponent, every=every), objects)


def scan_then_zipf(objects: int, reads: int, exponent: float, *, scan: int, seed: int = 0) -> Trace:
    """Return one pass over ``scan`` objects, then Zipf traffic on ``objects`` other objects. The trace has
    ``reads`` reads in all.
    """
    later = zipf_reads(np.random.default_rng(seed), objects, reads - scan, exponent)
    return stock(np.concatenate([objects + np.arange(scan), later]), objects + scan)


def zipf_with_scans(
    objects: int, reads: int, exponent: float, *, scan: int, every: int, seed: int = 0
) -> Trace:
    """Return Zipf traffic with scans. After every ``every`` Zipf reads a scan reads ``scan`` new objects,
    which are never read again. The trace has ``reads`` reads in all.
    """
    ids, first = zipf_reads(np.random.default_rng(seed), objects, reads, exponent), objects
    parts = []
    for start in range(0, reads * every // (scan + every), every):
        parts += [ids[start : start + every], np.arange(first, first + scan)]
        first += scan
    return stock(np.concatenate(parts)[:reads])


def newest_first(reads: int, *, seed: int = 0) -> Trace:
    """Return traffic in which a tenth of the reads are of new objects, and all other reads are of recent
    objects. The age of a recent object has a Zipf distribution of exponent 1.
    """
    random = np.random.default_rng(seed)
    ages = zipf_ranks(random, _NEWEST, reads)
    new = random.random(reads) < _NEW_SHARE
    new[0] = True
    newest = np.cumsum(new) - 1
    return stock(np.where(new, newest, np.maximum(newest - ages, 0)))


def zipf_ranks(random: np.random.Generator, objects: int, reads: int) -> Reads:
    """Return drawn ranks, from 0 on. A rank is drawn in proportion to 1 / (rank + 1)."""
    odds = 1 / np.arange(1.0, objects + 1)
    return random.choice(objects, reads, p=odds / odds.sum())


def moving_hot_set(hot: int, phases: int, reads_each: int, *, seed: int = 0) -> Trace:
    """Return a trace in phases. Each phase has ``hot`` objects of its own, and reads each of them
    ``reads_each`` times, in random order.
    """
    random = np.random.default_rng(seed)
    return stock(
        np.concatenate([
            phase * hot + random.permutation(np.repeat(np.arange(hot), reads_each))
            for phase in range(phases)
        ])
    )  # fmt: skip


def loop(objects: int, rounds: int, *, seed: int = 0) -> Trace:
    """Return reads of all objects in one order, again and again."""
    return stock(np.tile(np.random.default_rng(seed).permutation(objects), rounds))


def one_after_another(objects: int, epochs: int, *, sets: int = 2, seed: int = 0) -> Trace:
    """Return shuffled epochs of one data set, then of the next one. There are ``sets`` data sets of
    ``objects`` objects.
    """
    random = np.random.default_rng(seed)
    return stock(
        np.concatenate([
            part * objects + random.permutation(objects) for part in range(sets) for _ in range(epochs)
        ])
    )  # fmt: skip


def training_beside_zipf(
    objects: int, epochs: int, *, share: float, exponent: float = 1.0, seed: int = 0
) -> Trace:
    """Return shuffled epochs of ``objects`` objects, mixed with Zipf traffic on as many other objects.
    ``share``: the share of all reads that belong to the epochs.
    """
    random = np.random.default_rng(seed)
    training = np.concatenate([random.permutation(objects) for _ in range(epochs)])
    reads = round(len(training) / share)
    other = objects + zipf_reads(random, objects, reads - len(training), exponent)
    return stock(interleaved_at_random(random, [training, other]), 2 * objects)


def interleaved_at_random(random: np.random.Generator, parts: Sequence[Reads]) -> Reads:
    """Return the reads of all parts in a random order. The reads of one part keep their order."""
    whose = random.permutation(np.repeat(np.arange(len(parts)), [len(part) for part in parts]))
    ids = np.empty(len(whose), np.int64)
    for number, part in enumerate(parts):
        ids[whose == number] = part
    return ids


def trained(objects: int, epochs: int, *, jobs: int = 1, ranks: int = 1, seed: int = 0) -> Trace:
    """Return the reads of jobs without an SDK over one data set. Each job has shuffled epochs of its own."""
    orders: list[Orders] = [shuffled(objects, epochs, seed=seed + job, ranks=ranks) for job in range(jobs)]
    return unannounced(interleaved(orders, objects))


def lagged_stock(objects: int, epochs: int, *, seed: int = 0) -> Trace:
    """Return the reads of four jobs without an SDK. All jobs have the same order, and each job begins later
    than the job before.
    """
    return unannounced(lagged(objects, epochs, seed=seed))


def stock_shards(objects: int, epochs: int, *, reads: int, readers: int, seed: int = 0) -> Trace:
    """Return reads of shards without an SDK: each page is read ``reads`` times in a row."""
    return unannounced(shards(objects, epochs, reads=reads, readers=readers, seed=seed))


def unannounced(trace: Trace) -> Trace:
    """Return ``trace`` with every job replaced by a stock client."""
    numbers = [0] if trace.jobs is None else np.unique(trace.jobs).tolist()
    return replace(trace, stock=tuple(numbers))


def sized_zipf(objects: int, reads: int, exponent: float, *, seed: int = 0) -> Trace:
    """Return Zipf traffic on objects of lognormal sizes."""
    return sized(zipf(objects, reads, exponent, seed=seed), seed=seed)


def sized(trace: Trace, *, mean_bytes: float = 100_000, deviation: float = 1.0, seed: int = 0) -> Trace:
    """Return ``trace`` with lognormal sizes that are independent of popularity."""
    return replace(trace, sizes=lognormal(np.random.default_rng(seed), trace.objects, mean_bytes, deviation))


def lognormal(random: np.random.Generator, count: int, mean_bytes: float, deviation: float) -> Reads:
    """Return sizes of at least 1 KB with mean ``mean_bytes``, whose logarithm has the standard deviation
    ``deviation``.
    """
    sizes = random.lognormal(np.log(mean_bytes) - deviation**2 / 2, deviation, count)
    return np.maximum(sizes, 1000).astype(np.int64)


def mixed_kinds(reads: int, *, by_prefix: bool, seed: int = 0) -> Trace:
    """Return three kinds of traffic with lognormal sizes. Half of the reads are four shuffled epochs. A
    quarter is Zipf 0.9 of smaller objects. A quarter reads objects once.

    ``by_prefix``: each kind has a prefix of its own.
    """
    random = np.random.default_rng(seed)
    epochs, often, once = reads // 2, reads // 4, reads - reads // 2 - reads // 4
    samples = max(epochs // 4, 1)
    training = np.concatenate([random.permutation(samples) for _ in range(epochs // samples + 1)])[:epochs]
    popular = samples + zipf_reads(random, samples, often, 0.9)
    logs = 2 * samples + np.arange(once)
    ids = interleaved_at_random(random, [training, popular, logs])
    sizes = [
        lognormal(random, count, mean_bytes, 1.0)
        for count, mean_bytes in ((samples, 100_000), (samples, 30_000), (once, 100_000))
    ]
    prefixes = np.repeat(np.arange(3, dtype=np.uint16), [samples, samples, once])
    trace = stock(ids, 2 * samples + once)
    return replace(trace, sizes=np.concatenate(sizes), prefixes=prefixes if by_prefix else None)
