import pytest

from tests.support.redis_server import redis_server


@pytest.fixture(scope="package")
def redis(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server
