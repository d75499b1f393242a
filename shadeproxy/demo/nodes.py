"""``shadeproxy demo --nodes N``: runs one training of N ranks. Each rank reads through a proxy of its own,
and the N proxies share their pages as one cache. For comparison, the same training also runs through a single
proxy whose cache is as large.

Law: the demo's files are in temporary directories, and its servers and trainings are child processes. All of
these are gone when the demo has ended, as in demo/main.py.
"""

import os
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from rich.console import Console

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.cluster import cluster, shares
from shadeproxy.demo.main import conclude, make_report_directory, prepare
from shadeproxy.demo.messages import EpochDone, Event
from shadeproxy.demo.nodes_report import Node, NodesReport, NodesRun, findings, table, write_report
from shadeproxy.demo.processes import Child, scratch_directory, termination_as_interrupt
from shadeproxy.demo.report import describe_machine
from shadeproxy.demo.runs import Stage, expect_success, origin_of, training
from shadeproxy.demo.screen import Bars
from shadeproxy.demo.servers import proxy_settings, serving

_TRUST_S = 65.0
"""Age in seconds from which on a proxy of a cluster answers without asking the origin first: a minute, and
some seconds until the cluster's view is settled.
"""
_LOADERS = 1
_LAN = ("lan_reads", "lan_bytes")
_READ_BYTES = 1 << 16


def run_nodes(
    report_dir: Path,
    nodes: int,
    endpoint: str | None = None,
    bucket: str | None = None,
    *,
    objects: int = 10_000,
    epochs: int = 3,
    trust_s: float = _TRUST_S,
    work_dir: Path | None = None,
    console: Console | None = None,
) -> NodesReport:
    """Train through ``nodes`` proxies, and once more through one proxy. Write nodes.json into ``report_dir``.
    ``trust_s``: training begins when the proxies have this age. All other arguments have the same meaning as
    in ``run_demo``. Raises ShadeProxyError.
    """
    console = console or Console()
    started = time.monotonic()
    make_report_directory(report_dir)
    with (
        termination_as_interrupt(),
        scratch_directory("shadeproxy-demo-", work_dir) as directory,
        Bars(console, len(_title(nodes))) as bars,
    ):
        stage, dataset = prepare(
            directory, bars, console, endpoint=endpoint, bucket=bucket, objects=objects, epochs=epochs
        )
        console.print(
            f"{nodes} ranks train together: first all through one proxy with that cache, then each through a"
            f" proxy with 1/{nodes} of it."
        )
        with ExitStack() as opened:
            origin = opened.enter_context(origin_of(stage, directory))
            servers = opened.enter_context(
                cluster(nodes, origin, directory / "cluster", cache_bytes=stage.cache_bytes)
            )
            ready_s = time.monotonic() + trust_s
            # At first, the proxies of the cluster ask the origin before each answer. Run the training through
            # the single proxy meanwhile.
            settings = proxy_settings(origin, policy="default", cache_bytes=stage.cache_bytes)
            with serving("proxy", settings, directory / "proxy") as proxy:
                urls = [proxy.control_url] * nodes
                done = _train(stage, urls, directory / "one", bars.add(_title(1), epochs).show)
            alone = _run(done, [1.0], whole=True)
            if (wait_s := ready_s - time.monotonic()) > 0:
                console.print(
                    f"Waiting {wait_s:.0f} s: for a minute after their start, the proxies of a cluster ask"
                    " the origin before each answer.",
                    highlight=False,
                )
                time.sleep(wait_s)
            urls = [server.control_url for server in servers]
            done = _train(stage, urls, directory / "all", bars.add(_title(nodes), epochs).show)
            together = _run(done, shares(servers))
    report = NodesReport(describe_machine(), dataset, stage.cache_bytes, together, alone)
    written = [write_report(report, report_dir)]
    console.print(table(report))
    conclude(console, findings(report), written, started)
    return report


def _title(nodes: int) -> str:
    return f"{nodes} proxies, owned pages" if nodes > 1 else "one proxy"


def _train(
    stage: Stage, urls: Sequence[str], directory: Path, watch: Callable[[Event], None]
) -> list[list[EpochDone]]:
    """Train with one rank for each of ``urls``, the control listeners of the proxies through which the ranks
    read. Return the epochs of each rank. ``watch`` is called with each event of the first rank.

    Raises ShadeProxyError, with the end of the log of the rank that failed first.
    """
    directory.mkdir()
    done: list[list[EpochDone]] = [[] for _ in urls]
    with ExitStack() as opened:
        ranks = []
        for rank, url in enumerate(urls):
            plan = msgspec.structs.replace(
                stage.plan,
                control_url=url,
                mode="importance",
                scores=True,
                workers=_LOADERS,
                rank=rank,
                world_size=len(urls),
                meeting=str(directory / "meeting"),
            )
            log = directory / f"rank{rank}.log"
            ranks.append(opened.enter_context(training(f"rank {rank}", plan, log, stage.environment)))
        for rank, event in _events(ranks):
            if rank == 0:
                watch(event)
            if isinstance(event, EpochDone):
                done[rank].append(event)
    return done


def _events(ranks: Sequence[Child]) -> Iterator[tuple[int, Event]]:
    """Yield the events of all ranks in the order in which they come, each with the number of its rank."""
    decoder = msgspec.json.Decoder[Event](Event)
    rests = [b""] * len(ranks)
    with selectors.DefaultSelector() as waiting:
        for rank, child in enumerate(ranks):
            assert child.process.stdout is not None
            waiting.register(child.process.stdout, selectors.EVENT_READ, rank)
        while waiting.get_map():
            for key, _ in waiting.select():
                rank = key.data
                data = os.read(key.fd, _READ_BYTES)
                if not data:
                    waiting.unregister(key.fileobj)
                    expect_success(ranks[rank])
                *lines, rests[rank] = (rests[rank] + data).split(b"\n")
                for line in lines:
                    yield rank, decoder.decode(line)


def _run(done: Sequence[Sequence[EpochDone]], owned: Sequence[float], *, whole: bool = False) -> NodesRun:
    """Return a run that combines the epochs of its ranks. ``whole``: all ranks asked the same proxy, so the
    counts of any rank cover the reads of all ranks.
    """
    nodes = []
    for share, epochs in zip(owned, done[:1] if whole else done, strict=True):
        counted = tuple(epoch.counted for epoch in epochs if epoch.counted is not None)
        if len(counted) != len(epochs):
            raise ShadeProxyError("a rank asked no proxy, though it was to read through one")
        lan_reads, lan_bytes = (tuple(getattr(epoch, name) for epoch in epochs) for name in _LAN)
        nodes.append(Node(share, counted, lan_reads, lan_bytes))
    first = done[0]
    return NodesRun(
        nodes=tuple(nodes),
        wall_s=tuple(epoch.wall_s for epoch in first),
        stall_s=tuple(sum(rank[i].stall_s for rank in done) / len(done) for i in range(len(first))),
        accuracy=first[-1].accuracy,
    )
