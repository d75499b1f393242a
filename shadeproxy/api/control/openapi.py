"""/openapi.json (OpenAPI 3.1), made from the route table and the structs of bodies.py."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from shadeproxy.api.control.bodies import JSON
from shadeproxy.api.control.errors import ErrorAnswer
from shadeproxy.api.control.routes import MANIFEST_FIELD, Content, Route
from shadeproxy.core.types import NAME_PATTERN

_PARAMETER = re.compile(r"{(\w+)}")
_NAMED = frozenset({"dataset", "job"})
_ERROR = {"$ref": "#/components/responses/Error"}
_MANIFEST = {
    "name": MANIFEST_FIELD,
    "in": "header",
    "required": False,
    "description": "Digest of the manifest that the ids belong to; 409 when the job is on another one",
    "schema": {"type": "string"},
}


def describe(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of ``routes``."""
    routes = tuple(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    shapes = {shape for route in routes for shape in _shapes(route)} | {ErrorAnswer}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    error = {"description": "The error and what to change", "content": _content({JSON: ErrorAnswer})}
    schemes = {"token": {"type": "http", "scheme": "bearer"}, "browser": {"type": "http", "scheme": "basic"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ShadeProxy control API", "version": version},
        "paths": paths,
        "components": {"schemas": schemas, "responses": {"Error": error}, "securitySchemes": schemes},
    }


def _operation(route: Route) -> dict[str, Any]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
        for name in _PARAMETER.findall(route.path)
    ]
    query = [
        {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in route.query.items()
    ]
    header = [_MANIFEST] if route.speaks_of_ids else []
    answers: dict[str, Any] = {
        str(status): {"description": text, "content": _content(content)}
        for status, (text, content) in route.answers.items()
    }
    name = route.handler.__name__
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"head_{name}" if route.method == "HEAD" else name,
        "parameters": path + query + header,
        "responses": answers | {"default": _ERROR},
        "security": [{}] if route.probe or route.bare else [{"token": []}, {"browser": []}, {}],
    }
    if route.body:
        operation["requestBody"] = {"required": True, "content": _content(route.body)}
    return operation


def _path_schema(name: str) -> dict[str, str]:
    return {"type": "string", "pattern": NAME_PATTERN} if name in _NAMED else {"type": "string"}


def _content(content: Content) -> dict[str, Any]:
    return {
        kind: {} if shape is None else {"schema": {"$ref": f"#/components/schemas/{shape.__name__}"}}
        for kind, shape in content.items()
    }


def _shapes(route: Route) -> Iterable[type[msgspec.Struct]]:
    contents = [route.body, *(content for _, content in route.answers.values())]
    return (shape for content in contents for shape in content.values() if shape is not None)
