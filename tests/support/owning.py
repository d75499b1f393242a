"""Proxies of a cluster that each answer reads of the objects they own, for tests of announced orders."""

import numpy as np

from shadeproxy.core.types import JobContext
from shadeproxy.hints.jobs import Progress
from shadeproxy.hints.order.share import OwnedShare
from tests.support.announcing import NOW_S, Long

SIGNS_S = 2.0


def owners_of(hashes, nodes, view=0):
    """Return, for each object, the number of the node that owns it. Another view gives other owners."""
    mixed = (hashes ^ np.uint64(view * 0x9E3779B97F4A7C15 % (1 << 64))) * np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> np.uint64(33)) % np.uint64(nodes)).astype(np.int64)


def share_of(node, nodes, view=0):
    return OwnedShare((view, nodes), lambda hashes: owners_of(hashes, nodes, view) == node)


class Owned:
    """Proxies that share one job.

    Each proxy gets all announcements and all reports of progress. A read is noted only by the proxy that owns
    the object.
    """

    def __init__(self, nodes, count=4096, view=0, **job):
        self.nodes = [Long(count, on_lost=lambda orders, _job: orders.settle(), **job) for _ in range(nodes)]
        self.order = self.nodes[0].order
        self.hashes = self.nodes[0].hashes
        self.set_view(view)

    def set_view(self, view, nodes=None):
        """Give each of the first ``nodes`` proxies its share in a view. The other proxies own nothing."""
        nodes = len(self.nodes) if nodes is None else nodes
        self.owners = owners_of(self.hashes, nodes, view)
        for number, node in enumerate(self.nodes):
            node.hints.set_share(share_of(number, nodes, view))

    def mine(self, number, ids):
        """Return those of ``ids`` whose objects proxy ``number`` owns, in the same order."""
        ids = np.asarray(ids)
        return ids[self.owners[ids] == number].tolist()

    def announce(self, order=None, **kwargs):
        for node in self.nodes:
            node.announce(order, **kwargs)

    def read(self, ids, now_s=NOW_S, *, epoch=None, job="one"):
        for sample in np.asarray(ids).tolist():
            node = self.nodes[self.owners[sample]]
            node.orders.note_read(int(self.hashes[sample]), 0, JobContext(job, epoch) if job else None, now_s)

    def steadily(self, ids, per_s, start_s=NOW_S, **kwargs):
        """Read at a constant rate. Return the time after the last read.

        Every two seconds, all proxies hear that the job lives.
        """
        heard_s = start_s
        for number, sample in enumerate(np.asarray(ids).tolist()):
            now_s = start_s + number / per_s
            self.read([sample], now_s, **kwargs)
            if now_s - heard_s >= SIGNS_S:
                heard_s = now_s
                self.hear_of(now_s)
        return start_s + len(ids) / per_s

    def hear_of(self, now_s):
        """Tell each proxy that the job lives, as the cluster's applier would."""
        for node in self.nodes:
            node.hints.jobs.touch("one", now_s)
            node.orders.tick(now_s)

    def report(self, epoch, position, now_s=NOW_S, rank=0):
        for node in self.nodes:
            node.hints.report_progress("one", rank, Progress(epoch, position), now_s)

    @property
    def states(self):
        return [node.state for node in self.nodes]

    def left(self):
        """Return, for each proxy, the ids of the samples that it still expects to be read."""
        return [node.orders.coming("one", 1 << 20).tolist() for node in self.nodes]
