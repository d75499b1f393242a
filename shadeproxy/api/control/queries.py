"""Parses query strings. A struct describes the parameters that a query may have."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from aiohttp import web

from shadeproxy.core.errors import InvalidRequest

Query = TypeVar("Query", bound=msgspec.Struct)


def read_query(request: web.Request, kind: type[Query], documented: Mapping[str, str]) -> Query:
    """Return the query as ``kind``. Raises InvalidRequest, also if a parameter is not in ``documented`` or is
    sent twice.
    """
    query = dict(request.query)
    unknown = sorted(query.keys() - documented.keys())
    if unknown or len(query) != len(request.query):
        what = f"{unknown[0]!r} is not known" if unknown else "a parameter is there twice"
        raise wrong_query(what, documented)
    try:
        return msgspec.convert(query, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_query(str(error), documented) from None


def wrong_query(problem: str, documented: Mapping[str, str]) -> InvalidRequest:
    return InvalidRequest(f"the query is not right: {problem}", hint=f"parameters: {', '.join(documented)}")
