"""Answers ``GET /v1/datasets/{dataset}/owners``: which proxy caches each sample. docs/protocol.md describes
the answer.

Law: an answer is a hint. A proxy also answers reads of samples that other proxies cache, by relaying the
reads. So a client that does not call the owner only loses time.
"""

import msgspec
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from shadeproxy.api.control.bodies import OWNERS
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.queries import read_query
from shadeproxy.cluster.view import View
from shadeproxy.core.errors import Conflict
from shadeproxy.hints.datasets import Dataset, Groups

QUERY = {"digest": "The call is refused where the dataset has another digest"}
_ALIGNMENT = 4
_ANY = 0xFFFF
"""The number of a sample that no proxy caches now. Any proxy reads such a sample from the origin."""


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    digest: str | None = None


class _Node(msgspec.Struct):
    node: str
    control: str


async def get_owners(context: ControlContext, request: web.Request) -> web.Response:
    asked = read_query(request, _Asked, QUERY)
    dataset = context.hints.dataset(request.match_info["dataset"])
    context.hints.uses.note(dataset.name, context.clock.now_s())
    if asked.digest not in {None, dataset.digest}:
        raise Conflict(
            f"dataset {dataset.name!r} was registered again, with other samples than those of {asked.digest}",
            hint="register your manifest under another name",
        )
    status = context.cluster()
    view = None if status is None else status.shared_view()
    here = "" if status is None else status.node
    tag = _tag(dataset, view, here)
    headers = {"ETag": f'"{tag}"'}
    if any(one.value in {tag, "*"} for one in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    body = await context.in_pool(_encode, dataset, view, here)
    return web.Response(body=body, headers=headers, content_type=OWNERS)


def _tag(dataset: Dataset, view: View | None, here: str) -> str:
    """Return the ETag of an answer. Nodes of one view answer differently, because each names itself."""
    return dataset.digest if view is None else f"{dataset.digest}-{view.id.inc}-{view.id.number}-{here}"


def _encode(dataset: Dataset, view: View | None, here: str) -> bytes:
    nodes = [] if view is None else [_Node(name, view.facts[name].control) for name in view.homes.nodes]
    head = msgspec.json.encode({"here": here, "nodes": nodes})
    head += b" " * (-len(head) % _ALIGNMENT)
    column = b"" if view is None else _column(dataset.groups, view).tobytes()
    return np.array([len(head)], "<u4").tobytes() + head + column


def _column(groups: Groups, view: View) -> NDArray[np.uint16]:
    """Return, for each sample, the index of its home in ``view.homes.nodes``; _ANY if that node is away."""
    homes = view.homes
    # If the view has no nodes, ``find_many`` returns only -1, which becomes _ANY when it is cast to 16 bits.
    found = homes.find_many(groups.hashes).astype("<u2")
    for place, name in enumerate(homes.nodes):
        if view.seats[name].away:
            found[found == place] = _ANY
    return groups.spread(found)
