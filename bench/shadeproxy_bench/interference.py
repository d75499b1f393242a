"""Traces of a stock client S beside a job H. The hit ratio of S on them shows what the hints of H cost S.

Client 0 is S, with a hot set of its own. Job 1 is H, with shuffled epochs over a data set. The reads of S and
H alternate, a hundred a second together. The objects of S have the smaller ids. The functions are pure: a
seed gives one trace.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shadeproxy.simulate.trace import JobHints, Trace

HOT, SAMPLES, EPOCHS = 300, 3000, 6
CACHE = 400
_READS_PER_S = 100.0
_BATCH = 256
_FALSE_IDS, _FALSE_ROUNDS = 400, 15
_SCORED_IDS, _SCORED_ROUNDS = 350, 50
_LARGEST_SCORE = 3e38
_LOOP = 390
_AFTER_EPOCHS, _AFTER_SAMPLES = 5, 800

Said = Literal["order", "scores", "nothing", "false order", "few ids", "huge scores"]
Ids = NDArray[np.int64]


def beside(said: Said, *, loops: bool = False, seed: int = 0) -> Trace:
    """Return a trace of S beside H, whose hints are of the kind ``said``. ``loops``: S reads 390 objects in
    turn if True, and 300 objects at random if False.
    """
    random = np.random.default_rng(seed)
    own = _LOOP if loops else HOT
    order = own + _epochs(random, SAMPLES, EPOCHS)
    client = np.arange(len(order)) % own if loops else random.integers(0, own, len(order))
    ids, jobs = _in_turns(client, order)
    return _trace(ids, jobs, own + SAMPLES, _hints(random, said, own, order, jobs))


def after_a_kill(*, epochs: bool, seed: int = 0) -> Trace:
    """Return a trace of H and then of S. H announces six epochs, and is killed in the fourth. After that S
    reads alone.

    ``epochs``: S reads five shuffled epochs of 800 objects if True, and 300 objects at random if False.
    """
    random = np.random.default_rng(seed)
    own = _AFTER_SAMPLES if epochs else HOT
    order = own + _epochs(random, SAMPLES, EPOCHS)
    read = order[: SAMPLES * 7 // 2]
    client = (
        _epochs(random, _AFTER_SAMPLES, _AFTER_EPOCHS)
        if epochs
        else random.integers(0, own, SAMPLES * EPOCHS)
    )
    ids = np.concatenate([read, client])
    jobs = np.repeat(np.array([1, 0], np.uint8), [len(read), len(client)])
    return _trace(ids, jobs, own + SAMPLES, _hints(random, "order", own, order, jobs))


def _hints(
    random: np.random.Generator, said: Said, own: int, order: Ids, jobs: NDArray[np.uint8]
) -> JobHints:
    """Return the hints of H: its order, and scores at the end of each epoch. The order of an epoch is
    announced at half of the epoch before. ``said``: the kind of hints. Some kinds leave out the order or the
    scores; others make them false.
    """
    since, known = _next_at_half(len(order))
    announced = order
    scores, scored_at = None, None
    if said in {"scores", "nothing"}:
        announced, since, known = order[:0], np.array([0]), np.array([0])
    if said == "false order":
        announced = own + _epochs(random, SAMPLES, EPOCHS)
    if said in {"few ids", "huge scores"}:
        count, rounds = (_FALSE_IDS, _FALSE_ROUNDS) if said == "few ids" else (_SCORED_IDS, _SCORED_ROUNDS)
        announced = np.tile(own + np.arange(count), rounds)
        since, known = np.array([0]), np.array([len(announced)])
    if said in {"scores", "huge scores"}:
        begins = np.flatnonzero(jobs == 1)[::SAMPLES]
        scored_at = begins[1:] if said == "scores" else begins[:1]
        scores = np.stack([_scores(random) for _ in scored_at])
        if said == "huge scores":
            scores[:] = 1.0
            scores[:, :_SCORED_IDS] = _LARGEST_SCORE
    return JobHints(1, own, own + SAMPLES, announced.astype(np.uint32), since, known, scores, scored_at)


def _scores(random: np.random.Generator) -> NDArray[np.float32]:
    """Return scores for all samples, like SHADE's: ln(10 + rank by loss within a batch)."""
    scores = np.empty(SAMPLES)
    for start in range(0, SAMPLES, _BATCH):
        batch = random.normal(size=min(_BATCH, SAMPLES - start))
        scores[start : start + _BATCH] = np.log(batch.argsort().argsort() + 10)
    return scores.astype(np.float32)


def _next_at_half(reads: int) -> tuple[Ids, Ids]:
    """Return two columns. The first has the reads of H at which more of its order becomes known. The second
    has, for each of these reads, the number of entries that are known from then on.

    The first epoch is known at once, and each later epoch when half of the epoch before has been read.
    """
    halves = np.arange(SAMPLES // 2, reads, SAMPLES)
    return np.append(0, halves), np.minimum(np.append(SAMPLES, halves + SAMPLES * 3 // 2), reads)


def _epochs(random: np.random.Generator, objects: int, epochs: int) -> Ids:
    return np.concatenate([random.permutation(objects) for _ in range(epochs)])


def _in_turns(client: Ids, job: Ids) -> tuple[Ids, NDArray[np.uint8]]:
    return np.stack([client, job], axis=1).ravel(), np.tile(np.array([0, 1], np.uint8), len(job))


def _trace(ids: Ids, jobs: NDArray[np.uint8], objects: int, hints: JobHints) -> Trace:
    said = (hints,) if len(hints.order) or hints.scores is not None else ()
    times = np.arange(len(ids)) / _READS_PER_S
    return Trace(ids.astype(np.uint32), objects, jobs=jobs, times=times, stock=(0,), hints=said)
