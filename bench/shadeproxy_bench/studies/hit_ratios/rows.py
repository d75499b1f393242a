"""The rows of the comparison: stock traffic, training with and without an SDK, sizes and prefixes, a stock
client beside a job.

``TODAY`` has the hit ratios that the default policy had on these traces at seed 0, before it used expected
next uses. ``STORES_TODAY`` has its stores of that time, in per cent of the reads.
"""

from collections.abc import Callable
from functools import partial
from typing import get_args

from shadeproxy.policy.default import Objective
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.workloads import importance, lagged, uniform
from shadeproxy_bench import interference, traffic
from shadeproxy_bench.studies.hit_ratios.bounds import (
    ALL,
    CLIENT,
    at_least,
    few_stores,
    near_best,
    near_best_bytes,
    near_min,
    near_undisturbed,
    share_of_gain,
    times_best,
)
from shadeproxy_bench.studies.hit_ratios.row import (
    Row,
    every_read,
    later_epochs,
    later_quarters,
    of_the_client,
)

_OBJECTS, _READS = 10_000, 200_000
_SAMPLES = 5000

TODAY = {
    "importance none": 23.0,
    "importance epoch": 49.2,
    "importance next-half": 55.1,
    "importance all": 56.2,
    "heavy none": 70.3,
    "heavy epoch": 77.9,
    "heavy next-half": 82.3,
    "heavy all": 83.7,
    "2 jobs": 44.7,
    "4 jobs": 50.8,
    "2 stock jobs": 19.9,
    "4 stock jobs": 19.1,
    "lagged 5": 26.3,
    "lagged 20": 78.1,
    "node announced": 35.2,
    "node": 19.6,
    "shards 1000 3x8": 66.9,
    "shards 1000 2x32": 50.6,
    "shards 1000 4x16": 75.4,
    "shards 5000 3x8": 73.1,
    "training 4:1": 41.3,
}


STORES_TODAY = {
    "uniform epochs, stock, cache 250": 1.13,
    "uniform epochs, stock, cache 1000": 4.61,
    "uniform epochs, stock, cache 2500": 11.57,
    "uniform epochs, stock, cache 4000": 18.53,
    "Zipf 0.6, cache 2000": 12.08,
    "Zipf 0.8, cache 500": 20.24,
    "Zipf 0.8, cache 2000": 17.22,
    "Zipf 1, cache 500": 35.70,
}


def _today(name: str, less: float = 0.0) -> float:
    """Return the ratio of ``name`` in TODAY, minus ``less`` points, and minus half of the last digit, because
    the ratio may have been rounded up.
    """
    return TODAY[name] - less - 0.05


_ZIPF_1 = partial(traffic.zipf, _OBJECTS, _READS, 1.0)
_SCANS = partial(traffic.zipf_with_scans, _OBJECTS, _READS, 1.0)


def _stock() -> list[Row]:
    shares = [round(share * _OBJECTS) for share in (0.01, 0.05, 0.2)]
    rows = [
        Row(
            "zipf",
            f"Zipf {exponent:g}",
            partial(traffic.zipf, _OBJECTS, _READS, exponent),
            places,
            (near_best(0.5),),
        )
        for exponent in (0.6, 0.8, 1.0, 1.2)
        for places in shares
    ]
    scan = partial(traffic.scan_then_zipf, _OBJECTS, _READS, 1.0, scan=_OBJECTS)
    hot = partial(traffic.moving_hot_set, 500, 8, 20)
    changes = [
        *(("Zipf 1, redrawn each 50,000", partial(_ZIPF_1, every=50_000), places) for places in shares),
        *(("a scan, then Zipf 1", scan, places) for places in shares),
        ("Zipf 1, scans of 600", partial(_SCANS, scan=600, every=2000), 500),
        ("Zipf 1, scans of 3,000", partial(_SCANS, scan=3000, every=30_000), 500),
        *(("newest first", partial(traffic.newest_first, 100_000), places) for places in (500, 1000)),
        *(("hot set moves", hot, places) for places in (600, 1200)),
    ]
    rows += [Row("change", words, trace, places, (near_best(1),)) for words, trace, places in changes]
    rows += [
        Row(
            "loops",
            f"loop of {length:g} x the cache",
            partial(traffic.loop, round(1000 * length), 20),
            1000,
            (near_min(0.5),),
        )
        for length in (1.02, 1.1, 1.3, 2.0)
    ]
    after = traffic.one_after_another
    return [
        *rows,
        Row("phases", "A x5, then B x5", partial(after, 2000, 5), 2000, (at_least(78.5),)),
        Row("phases", "A x20, then B x20", partial(after, 2000, 20), 2000, (at_least(94),)),
        Row("phases", "A x5, then B x5, each 5 x the cache", partial(after, 5000, 5), 1000, (near_min(0.5),)),
    ]


def _training() -> list[Row]:
    rows = [
        Row(
            "training",
            f"training beside Zipf 1, {words}",
            partial(traffic.training_beside_zipf, _SAMPLES, 10, share=share),
            places,
            (near_best(1),),
        )
        for words, share in (("1:1", 0.5), ("4:1", 0.8))
        for places in (500, 2000)
    ]
    rows.append(
        Row(
            "training",
            "training beside Zipf 1, 4:1, 30 epochs, last three quarters",
            partial(traffic.training_beside_zipf, _SAMPLES, 30, share=0.8),
            2000,
            (at_least(_today("training 4:1")),),
            counted=later_quarters,
        )
    )
    trained = partial(traffic.trained, _SAMPLES)
    epochs = [
        *(
            ("uniform epochs, stock", partial(trained, 5), round(c * _SAMPLES), 99.8 * c)
            for c in (0.05, 0.2, 0.5, 0.8)
        ),
        *(
            (f"{jobs} stock jobs on 2,000", partial(traffic.trained, 2000, 5, jobs=jobs), 400, 27)
            for jobs in (2, 4)
        ),
        *(
            (f"{jobs} stock jobs", partial(trained, 4, jobs=jobs), 1000, _today(f"{jobs} stock jobs"))
            for jobs in (2, 4)
        ),
        ("4 lagged stock jobs", partial(traffic.lagged_stock, _SAMPLES, 4), 250, 24),
        ("4 lagged stock jobs", partial(traffic.lagged_stock, _SAMPLES, 4), 1000, 72),
        ("one node of four, stock", partial(trained, 16, ranks=4), 1000, _today("node", 2)),
    ]
    shards = [
        (
            f"shards, {reads} reads, {readers} readers, {pages:,} pages",
            partial(traffic.stock_shards, pages, 4, reads=reads, readers=readers),
            pages // 5,
            _today(f"shards {pages} {reads}x{readers}"),
        )
        for pages, reads, readers in ((1000, 3, 8), (1000, 2, 32), (1000, 4, 16), (5000, 3, 8))
    ]
    return rows + [
        Row(group, words, trace, places, (at_least(least),), counted=later_epochs)
        for group, found in (("epochs", epochs), ("shards", shards))
        for words, trace, places, least in found
    ]


def _announced() -> list[Row]:
    draws = partial(importance, _SAMPLES, 5)
    heavy = partial(draws, draws="heavy")
    cases = [
        *((f"{words} draws", trace, 1000, announce, f"{words} {announce}")
          for words, trace in (("importance", draws), ("heavy", heavy))
          for announce in ("none", "epoch", "next-half", "all")),
        *((f"{jobs} jobs", partial(uniform, _SAMPLES, 4, jobs=jobs), 1000, "2", f"{jobs} jobs")
          for jobs in (2, 4)),
        ("4 lagged jobs", partial(lagged, _SAMPLES, 4), 250, "next-half", "lagged 5"),
        ("4 lagged jobs", partial(lagged, _SAMPLES, 4), 1000, "next-half", "lagged 20"),
        ("one node of four", partial(uniform, _SAMPLES, 16, ranks=4), 1000, "2", "node announced"),
    ]  # fmt: skip
    return [
        Row(
            "announced",
            f"{words}, announced: {announce}",
            trace,
            places,
            (at_least(_today(today, 0.5)),),
            announce=announce,
            counted=later_epochs,
        )
        for words, trace, places, announce, today in cases
    ]


def _sizes() -> list[Row]:
    rows = []
    kinds = partial(traffic.mixed_kinds, _READS)
    zipf = partial(traffic.sized_zipf, _OBJECTS, _READS, 0.8)
    alike = (near_best(1), near_best_bytes(1))
    for objective in get_args(Objective):
        of_bytes = objective == "bytes"
        cases = [
            *(("three kinds, one prefix", partial(kinds, by_prefix=False), c, alike) for c in (0.1, 0.3)),
            *(("three kinds, a prefix each", partial(kinds, by_prefix=True), c, times_best(1.25, 1.1))
              for c in (0.1, 0.3)),
            *(("Zipf 0.8, lognormal", zipf, c, (near_best_bytes(0.5),) if of_bytes else (near_best(0.5),))
              for c in (0.05, 0.2)),
        ]  # fmt: skip
        rows += [
            Row(
                "sizes",
                f"{words}, for {objective}",
                trace,
                c,
                bounds if of_bytes else bounds[:1],
                objective=objective,
            )
            for words, trace, c, bounds in cases
        ]
    return rows


def _beside() -> list[Row]:
    cases: list[tuple[str, interference.Said, bool]] = [
        ("an honest order", "order", False),
        ("scores only", "scores", False),
        ("nothing said", "nothing", False),
        ("a false order", "false order", False),
        ("400 ids announced 15 times", "few ids", False),
        ("350 ids 50 times, scores of 3e38", "huge scores", False),
        ("an honest order, the client loops over 390", "order", True),
    ]
    rows = [
        Row(
            "beside",
            f"client beside a job: {words}",
            partial(interference.beside, said, loops=loops),
            interference.CACHE,
            (CLIENT, ALL),
            announce="none" if said == "nothing" else "trace",
            beside=True,
        )
        for words, said, loops in cases
    ]
    kill = partial(Row, "beside", announce="trace", counted=of_the_client, beside=True)
    hot, epochs = (partial(interference.after_a_kill, epochs=epochs) for epochs in (False, True))
    bounds = (CLIENT, ALL, share_of_gain(0.65))
    return [
        *rows,
        kill("client after a kill: a hot set of 300", hot, interference.CACHE, (CLIENT, near_best(2))),
        kill("client after a kill: five epochs of 800", epochs, interference.CACHE, bounds),
    ]


def _restarts() -> list[Row]:
    cases: list[tuple[str, Callable[..., Trace], int, str]] = [
        ("Zipf 1", _ZIPF_1, 500, "none"),
        ("A x5, then B x5", partial(traffic.one_after_another, 2000, 5), 2000, "none"),
        (
            "training beside Zipf 1, 4:1",
            partial(traffic.training_beside_zipf, _SAMPLES, 10, share=0.8),
            2000,
            "none",
        ),
        (
            "client after a kill: five epochs of 800",
            partial(interference.after_a_kill, epochs=True),
            interference.CACHE,
            "trace",
        ),
    ]
    return [
        Row(
            "restarts",
            f"restart in the middle: {words}",
            trace,
            places,
            (near_undisturbed(0.5),),
            announce=announce,
            counted=of_the_client if announce == "trace" else every_read,
            restarts=True,
        )
        for words, trace, places, announce in cases
    ]


def _with_stores(row: Row) -> Row:
    most = STORES_TODAY.get(row.name)
    return row if most is None else row._replace(bounds=(*row.bounds, few_stores(most)))


ROWS: dict[str, Row] = {
    row.name: _with_stores(row)
    for row in (*_stock(), *_training(), *_announced(), *_sizes(), *_beside(), *_restarts())
}
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS.values()))
