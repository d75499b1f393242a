"""Calls about a cluster: show its nodes and the owner of an object, forget a node, drain a node."""

import msgspec
from aiohttp import web

from shadeproxy.api.control.admin import ONE, require_bucket
from shadeproxy.api.control.bodies import answer_json, read_json
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.namespaces import require_namespace
from shadeproxy.api.control.queries import read_query
from shadeproxy.cluster.status import ClusterStatus, ClusterSummary
from shadeproxy.core.errors import Conflict
from shadeproxy.core.types import ObjectRef
from shadeproxy.hints.hashing import object_hash


class ForgetRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A call that removes a node from the cluster. ``node``: its id, as GET /v1/cluster shows it."""

    node: str


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A call about the share of the called node. ``drain``: true to give the share up, false to take it
    again.
    """

    drain: bool


class _One(msgspec.Struct, forbid_unknown_fields=True):
    namespace: str = ""


async def get_cluster(context: ControlContext, _request: web.Request) -> web.Response:
    status = context.cluster()
    return answer_json(ClusterSummary() if status is None else status.summary())


async def get_owner(context: ControlContext, request: web.Request) -> web.Response:
    asked = read_query(request, _One, ONE)
    bucket = require_bucket(request.match_info["bucket"])
    ref = ObjectRef(bucket, request.match_info["key"], require_namespace(context, asked.namespace))
    return answer_json(require_cluster(context).owner(f"s3://{ref.bucket}/{ref.key}", object_hash(ref)))


async def forget(context: ControlContext, request: web.Request) -> web.Response:
    wanted = await read_json(request, ForgetRequest)
    return answer_json(await require_cluster(context).forget(wanted.node))


async def drain(context: ControlContext, request: web.Request) -> web.Response:
    wanted = await read_json(request, DrainRequest)
    return answer_json(require_cluster(context).drain(drain=wanted.drain))


def require_cluster(context: ControlContext) -> ClusterStatus:
    """Return the object that answers calls about the cluster. Raises Conflict if this proxy is in
    no cluster.
    """
    status = context.cluster()
    if status is None:
        raise Conflict("this proxy is in no cluster", hint="set cluster.name")
    return status
