"""The port to the view: which other node answers the reads of an object, and which executes its writes."""

from typing import Protocol

from shadeproxy.cluster.view import NodeFacts
from shadeproxy.core.types import ObjectRef


class ReadRoutes(Protocol):
    """The nodes to ask for reads, by the newest view that this process knows. No call waits."""

    def reader(self, ref: ObjectRef) -> NodeFacts | None:
        """Return the other node that caches the object; None if this node caches it, or if the node that
        caches it is away.
        """
        ...


class Routes(ReadRoutes, Protocol):
    """The nodes to ask for reads and writes, by the newest view that this node has adopted. No call waits."""

    def writer(self, ref: ObjectRef) -> NodeFacts | None:
        """Return the other node that executes writes of the object; None if this node executes them, or if
        no node can.
        """
        ...

    def is_hindered(self) -> bool:
        """Return whether this node has no part in the cluster, although the cluster's log answers."""
        ...
