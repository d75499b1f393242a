"""Makes the aiohttp application of the control listener from the route table, the guard and the error
answers.
"""

import re
from collections.abc import Sequence
from functools import cache

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler as WebHandler
from aiohttp.typedefs import Middleware

from shadeproxy.api.control.bodies import JSON
from shadeproxy.api.control.context import ControlContext
from shadeproxy.api.control.datasets import MANIFEST_FIELD
from shadeproxy.api.control.errors import translate_errors
from shadeproxy.api.control.guard import check_caller
from shadeproxy.api.control.openapi import describe
from shadeproxy.api.control.routes import ROUTES, Route
from shadeproxy.core.errors import Conflict, InvalidRequest
from shadeproxy.core.types import NAME_PATTERN

_NAME = re.compile(NAME_PATTERN)
_OPENAPI = "/openapi.json"


def make_control_app(context: ControlContext, outermost: Sequence[Middleware] = ()) -> web.Application:
    """Return the application, which any aiohttp runner can serve. client_max_size is not set, because
    ``read_pieces`` limits bodies. ``outermost``: middlewares that see each answer as it is sent.
    """
    routes = (*ROUTES, _openapi_route(context.version))
    open_paths = frozenset(route.path for route in routes if route.probe)
    bare_paths = frozenset(route.path for route in routes if route.bare)

    @web.middleware
    async def guard(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        token = context.access.token
        if request.path not in open_paths and (token is None or request.path not in bare_paths):
            check_caller(request, token=token, allowed_hosts=context.allowed_hosts)
        return await handler(request)

    app = web.Application(middlewares=[*outermost, translate_errors, guard])
    for route in routes:
        # Only keys may contain slashes. Every other parameter is one segment of the path.
        app.router.add_route(
            route.method, route.path.replace("{key}", r"{key:[\s\S]+}"), _bind(route, context)
        )
    return app


def _bind(route: Route, context: ControlContext) -> WebHandler:
    async def bound(request: web.Request) -> web.StreamResponse:
        for kind in ("dataset", "job"):
            name = request.match_info.get(kind)
            if name is not None and not _NAME.fullmatch(name):
                raise InvalidRequest(
                    f"{name[:80]!r} cannot be the name of a {kind}",
                    hint="names are 1 to 128 of A-Z a-z 0-9 . _ @ + = - and start with a letter or digit",
                )
        if route.speaks_of_ids:
            _check_manifest(context, request)
        return await route.handler(context, request)

    return bound


def _check_manifest(context: ControlContext, request: web.Request) -> None:
    """Raise Conflict if the call names a manifest in ``MANIFEST_FIELD``, and the job is on another manifest,
    so that the call's ids mean other samples. Raises UnknownName.
    """
    name, digest = request.match_info["job"], request.headers.get(MANIFEST_FIELD)
    if digest is None:
        return
    dataset = context.hints.jobs.get(name).dataset
    if dataset is None or context.hints.dataset(dataset).digest != digest:
        raise Conflict(
            f"job {name!r} is on another manifest than {digest[:80]}: its ids mean other samples",
            hint="register this run as a job of another name; two runs use this one",
        )


@cache
def _openapi_route(version: str) -> Route:
    """Return the route of /openapi.json. All applications of a process share it, so the document is made
    once.
    """

    async def openapi(_context: ControlContext, _request: web.Request) -> web.Response:
        return web.Response(body=document, content_type=JSON)

    content: dict[str, type[msgspec.Struct] | None] = {JSON: None}
    route = Route("GET", _OPENAPI, "This document", openapi, answers={200: ("OK", content)})
    document = msgspec.json.encode(describe((*ROUTES, route), version))
    return route
