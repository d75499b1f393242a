"""``python -m shadeproxy_bench.studies.hit_ratios.compare`` runs each row of rows.py and checks the row's
bounds.

Each row is run with a policy of the proxy, the policies of the literature and the clairvoyant. All rows take
some 10 minutes with two processes.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy.policy.registry import POLICIES, get_policy
from shadeproxy.simulate.baselines.registry import BASELINES, baseline_hits
from shadeproxy.simulate.bound import clairvoyant_hits
from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.replay import Replay
from shadeproxy.simulate.restart import Restart
from shadeproxy.simulate.trace import NO_JOB, Trace
from shadeproxy_bench.studies.hit_ratios.bounds import LRU, MIN, OURS, UNDISTURBED, Ratios, Results
from shadeproxy_bench.studies.hit_ratios.row import Row
from shadeproxy_bench.studies.hit_ratios.rows import GROUPS, ROWS
from shadeproxy_bench.tables import table

OTHERS = (LRU, *BASELINES, MIN)
_OF_OURS = (OURS, UNDISTURBED)
_MOST_PROCESSES = 2
_SHARE_OF_GAIN = 0.8


class Found(NamedTuple):
    """Results of one row. ``digest``: identifies the reads of the row, so that stored results of other reads
    are not used.
    """

    digest: int
    ratios: dict[str, Ratios]


class Task(NamedTuple):
    """One row at one seed. ``known``: stored results of other policies, which are used if they are of the
    same reads. ``restarts``: whether our policy is restarted in the middle of the row.
    """

    row: str
    seed: int
    ours: str
    known: Found
    restarts: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested rows. Return 1 if a bound is missed, and otherwise 0."""
    options = _parser().parse_args(arguments)
    names = chosen(options.rows)
    kept = Kept(options.keep)
    tasks = [
        Task(name, seed, options.policy, kept.known(name, seed), options.restart)
        for seed in options.seeds
        for name in names
    ]
    lines, missed, beside = [], 0, []
    with ProcessPoolExecutor(min(options.processes, _MOST_PROCESSES)) as pool:
        for task, found in zip(tasks, pool.map(measure, tasks), strict=True):
            row, results = ROWS[task.row], found.ratios
            kept.add(task, found)
            cells, good = line(row, results, seed=task.seed)
            missed += not good
            lines.append(cells)
            if row.beside:
                beside.append(results)
            print(" | ".join(cells), file=sys.stderr, flush=True)
    text = "\n".join(table(["workload", *(OURS, *OTHERS), "bounds", ""], lines))
    if beside:
        share = shared_gain(beside)
        missed += share < _SHARE_OF_GAIN
        text += f"\n\nClient beside a job, in sum: {share:.2f} of min's gain over lru"
        text += f" (wanted {_SHARE_OF_GAIN:g}): {_verdict(good=share >= _SHARE_OF_GAIN)}"
    seeds, restarts = " ".join(map(str, options.seeds)), ", a restart in the middle" * options.restart
    text += f"\n\n{len(lines)} rows, seeds {seeds}{restarts}, {missed} missed.\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text)
    return int(missed > 0)


def chosen(text: str) -> list[str]:
    """Return the names of the rows that ``text`` asks for. Its words are separated by commas: each is the
    name of a group, or a part of the names of rows. An empty ``text`` asks for all rows.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    found = [
        name
        for name, row in ROWS.items()
        if not words or any(word == row.group or (word not in GROUPS and word in name) for word in words)
    ]
    if not found:
        raise SystemExit(f"--rows: {text!r} is in no row; name groups ({', '.join(GROUPS)}) or words of it")
    return found


def measure(task: Task) -> Found:
    """Return the hit ratios of our policy and of all other policies on one row."""
    row = ROWS[task.row]
    trace = row.trace(seed=task.seed)
    capacity = round(row.cache * trace.total_bytes) if row.cache < 1 else int(row.cache)
    counted = row.counted(trace)
    announce = parse_announce(row.announce)
    digest = _digest(trace, capacity, counted)
    known = task.known.ratios if task.known.digest == digest else {}
    found = {}
    restart = Restart(len(trace.ids) // 2) if row.restarts or task.restarts else None
    for name in (OURS, *OTHERS, *([UNDISTURBED] if row.restarts else [])):
        if name in known:
            found[name] = known[name]
            continue
        stores = nan
        if name == MIN:
            hits = clairvoyant_hits(trace, capacity)
        elif name in BASELINES:
            hits = baseline_hits(name, trace, capacity)
        else:
            policy = get_policy(task.ours if name in _OF_OURS else name, row.objective)
            replay = Replay(
                trace,
                policy,
                capacity,
                announce=announce,
                seed=task.seed,
                restart=restart if name == OURS else None,
            )
            hits = replay.run()
            stores = 100 * replay.stores / len(trace.ids)
        found[name] = ratios(trace, hits, counted)._replace(stores=stores)
    return Found(digest, found)


def ratios(trace: Trace, hits: NDArray[np.bool_], counted: NDArray[np.bool_]) -> Ratios:
    """Return the ratios of hits, hit bytes and the client's hits, over the reads that are ``counted``."""
    sizes = np.ones(trace.objects) if trace.sizes is None else trace.sizes
    read_bytes = sizes[trace.ids]
    client = counted & (trace.job_of_reads() == NO_JOB)
    return Ratios(
        100 * float(hits[counted].mean()),
        100 * float(read_bytes[counted & hits].sum() / read_bytes[counted].sum()),
        100 * float(hits[client].mean()) if client.any() else float("nan"),
    )


def line(row: Row, results: Results, *, seed: int) -> tuple[list[str], bool]:
    """Return the cells of a row's line, and whether the row meets all of its bounds."""
    margins = [(bound.words, bound.margin(results)) for bound in row.bounds]
    good = all(margin >= 0 for _, margin in margins)
    bounds = "; ".join(f"{words} ({margin:+.1f})" for words, margin in margins)
    cells = [_cell(row, results[name]) for name in (OURS, *OTHERS)]
    return [f"{row.name}, seed {seed}", *cells, bounds, _verdict(good=good)], good


def shared_gain(beside: Sequence[Results]) -> float:
    """Return which share of the clairvoyant's gain over LRU our policy reaches, in sum over several rows."""
    gain, most = (sum(results[name].hits - results[LRU].hits for results in beside) for name in (OURS, MIN))
    return gain / most if most else 1.0


class Kept:
    """Stored results of the other policies, in a file if one is given. These results stay the same while our
    policy changes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, tuple[int, dict[str, list[float]]]] = {}
        if path is not None and path.exists():
            self._found = json.loads(path.read_text())

    def known(self, row: str, seed: int) -> Found:
        digest, found = self._found.get(f"{row}, seed {seed}", (0, {}))
        return Found(digest, {name: Ratios(*numbers) for name, numbers in found.items()})

    def add(self, task: Task, found: Found) -> None:
        others = {name: list(ratios) for name, ratios in found.ratios.items() if name not in _OF_OURS}
        self._found[f"{task.row}, seed {task.seed}"] = found.digest, others
        if self._path is not None:
            self._path.write_text(json.dumps(self._found))


def _digest(trace: Trace, capacity: int, counted: NDArray[np.bool_]) -> int:
    columns = [trace.ids, np.array([capacity]), counted] + ([] if trace.sizes is None else [trace.sizes])
    return zlib.crc32(b"".join(np.ascontiguousarray(column).tobytes() for column in columns))


def _cell(row: Row, found: Ratios) -> str:
    text = f"{found.hits:.1f}"
    if row.group == "sizes":
        text += f" / {found.bytes:.1f}"
    if row.beside and found.client != found.hits:
        text += f" (client {found.client:.1f})"
    return text


def _verdict(*, good: bool) -> str:
    return "reached" if good else "**missed**"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="A policy beside those of the literature, row by row.")
    parser.add_argument("--policy", choices=list(POLICIES), default="default", help="the one called ours")
    parser.add_argument("--rows", default="", help=f"groups ({', '.join(GROUPS)}) or parts of names")
    parser.add_argument("--seeds", type=_seeds, default=[0], help="as 0,1,2")
    parser.add_argument("--restart", action="store_true", help="restart ours in the middle of each row")
    parser.add_argument("--processes", type=int, default=_MOST_PROCESSES, choices=(1, _MOST_PROCESSES))
    parser.add_argument("--keep", type=Path, help="a file for the results of the other policies")
    parser.add_argument("--out", type=Path, help="where the table goes too")
    return parser


def _seeds(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
