"""The process of the tests keeps no objects of a test that has ended.

tests/conftest.py says which objects would stay without its help.
"""

import gc

import pytest
from aiohttp import web, web_app
from aiohttp.test_utils import TestClient, TestServer


class Columns:
    """An object that refers to itself, as an engine does, so that only the garbage collector frees it."""

    def __init__(self):
        self.me = self


@web.middleware
async def middleware(request, handler):
    return await handler(request)


@pytest.fixture
async def application():
    app = web.Application(middlewares=[middleware])

    async def answer(_request, columns=Columns()):  # noqa: B008 (lives as long as the handler)
        return web.Response(text=type(columns).__name__)

    app.router.add_get("/", answer)
    return app


async def test_an_application_has_answered(application):
    async with TestClient(TestServer(application)) as client:
        assert await (await client.get("/")).text() == "Columns"
    assert web_app._cached_build_middleware.cache_info().currsize > 0


def test_an_application_and_its_engine_go_with_their_test():
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Columns)]


def test_collections_are_frequent_and_leave_out_modules_and_collected_tests():
    assert gc.get_threshold() == (700, 10, 1)
    assert gc.get_freeze_count() > 50_000
    gc.collect()
    assert len(gc.get_objects()) < gc.get_freeze_count()
