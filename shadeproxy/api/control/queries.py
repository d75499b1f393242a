"""Query strings of calls whose parameters are a struct."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from aiohttp import web

from shadeproxy.core.errors import InvalidRequest

Query = TypeVar("Query", bound=msgspec.Struct)


def read_query(request: web.Request, kind: type[Query], documented: Mapping[str, str]) -> Query:
    """The query as ``kind``, which forbids unknown fields. Raises InvalidRequest naming ``documented``."""
    query = dict(request.query)
    try:
        asked = msgspec.convert(query, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_query(str(error), documented) from None
    if len(query) != len(request.query):
        raise wrong_query("a parameter is there twice", documented)
    return asked


def wrong_query(problem: str, documented: Mapping[str, str]) -> InvalidRequest:
    return InvalidRequest(f"the query is not right: {problem}", hint=f"parameters: {', '.join(documented)}")
