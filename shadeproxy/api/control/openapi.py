"""Makes /openapi.json (OpenAPI 3.1) from the route table and the structs of bodies.py."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from shadeproxy.api.control.bodies import JSON
from shadeproxy.api.control.datasets import MANIFEST_FIELD
from shadeproxy.api.control.errors import ErrorAnswer
from shadeproxy.api.control.routes import Content, Route
from shadeproxy.core.types import NAME_PATTERN

_PARAMETER = re.compile(r"{(\w+)}")
_NAMED = frozenset({"dataset", "job"})
_ERROR = {"$ref": "#/components/responses/Error"}
_BYTES = {"type": "string", "format": "binary"}
_MANIFEST = {
    "name": MANIFEST_FIELD,
    "in": "header",
    "required": False,
    "description": "Digest of the manifest that the ids belong to; 409 when the job is on another one",
    "schema": {"type": "string"},
}
_OWN_MANIFEST = _MANIFEST | {
    "description": "Digest of the list in the body, which is not read if the dataset has this digest already"
}

EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("PUT", "/v1/datasets/{dataset}"): {"bucket": "train", "prefix": "imagenet/"},
    ("PUT", "/v1/jobs/{job}"): {"dataset": "imagenet", "world_size": 1, "weight": 1.0},
    ("POST", "/v1/jobs/{job}/scores"): {"keys": {"train/imagenet/0": 0.7, "train/imagenet/1": 2.5}},
    ("POST", "/v1/jobs/{job}/epochs/{epoch}/scores"): {"mean_loss": 1.25},
    ("PUT", "/v1/jobs/{job}/epochs/{epoch}/order"): {"ids": [1, 0]},
    ("POST", "/v1/jobs/{job}/progress"): {"epoch": 0, "rank": 0, "position": 2, "stall_s": 0.25},
    ("POST", "/v1/batch"): {"dataset": "imagenet", "ids": [0, 1]},
    ("POST", "/v1/locate"): {"dataset": "imagenet", "ids": [0, 1]},
    ("POST", "/v1/pin"): {"uri": "s3://train/imagenet/"},
    ("POST", "/v1/unpin"): {"uri": "s3://train/imagenet/"},
    ("POST", "/v1/warm"): {"uri": "s3://train/imagenet/", "dry_run": True},
    ("POST", "/v1/purge"): {"uri": "s3://train/imagenet/", "dry_run": True},
    ("PUT", "/v1/log-level"): {"level": "info"},
}
"""Examples of JSON bodies, by call. If these calls are made in this order, a new proxy accepts all
of them.
"""

_TAGS = {
    "datasets": "data sets",
    "jobs": "jobs",
    "batch": "reads",
    "locate": "reads",
    "warm": "cache",
    "pin": "cache",
    "unpin": "cache",
    "pins": "cache",
    "purge": "cache",
    "objects": "cache",
    "operations": "cache",
    "cluster": "cluster",
}
"""The tag of a call, by the first segment of its path after /v1. Calls with another segment are about the
proxy itself.
"""


def describe(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI document for ``routes``."""
    routes = tuple(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    shapes = {shape for route in routes for shape in _shapes(route)} | {ErrorAnswer}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    error = {"description": "The error and what to change", "content": _content({JSON: ErrorAnswer})}
    schemes = {"token": {"type": "http", "scheme": "bearer"}, "browser": {"type": "http", "scheme": "basic"}}
    _plain(schemas)
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
    if (route.method, route.path) == ("PUT", "/v1/datasets/{dataset}"):
        header = [_OWN_MANIFEST]
    answers: dict[str, Any] = {
        str(status): {"description": text, "content": _content(content)}
        for status, (text, content) in route.answers.items()
    }
    name, parts = route.handler.__name__, route.path.split("/")
    operation: dict[str, Any] = {
        "summary": route.summary,
        "tags": [_TAGS.get(parts[2], "proxy") if len(parts) > 2 else "proxy"],
        "operationId": f"head_{name}" if route.method == "HEAD" else name,
        "parameters": path + query + header,
        "responses": answers | {"default": _ERROR},
        "security": [{}] if route.probe or route.bare else [{"token": []}, {"browser": []}, {}],
    }
    if route.body:
        content = _content(route.body)
        if (example := EXAMPLES.get((route.method, route.path))) is not None:
            content[JSON]["example"] = example
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_schema(name: str) -> dict[str, str]:
    return {"type": "string", "pattern": NAME_PATTERN} if name in _NAMED else {"type": "string"}


def _content(content: Content) -> dict[str, Any]:
    return {kind: {"schema": _schema(kind, shape)} for kind, shape in content.items()}


def _schema(kind: str, shape: type[msgspec.Struct] | None) -> dict[str, str]:
    if shape is not None:
        return {"$ref": f"#/components/schemas/{shape.__name__}"}
    return {"type": "object"} if kind == JSON else _BYTES


def _plain(schema: Any) -> None:
    """Put each description, which comes from a docstring, on one line, and remove the marks of code.

    Describe the two items of a pair as one: generators of clients do not understand ``prefixItems`` yet.
    """
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _plain(value)
    if not isinstance(schema, dict):
        return
    if isinstance(text := schema.get("description"), str):
        schema["description"] = " ".join(text.split()).replace("``", "")
    if schema.get("items") is False:
        schema["items"] = schema.pop("prefixItems")[0]


def _shapes(route: Route) -> Iterable[type[msgspec.Struct]]:
    contents = [route.body, *(content for _, content in route.answers.values())]
    return (shape for content in contents for shape in content.values() if shape is not None)
