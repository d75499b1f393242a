"""A real S3 server for tests that need one: Ceph RGW on a free loopback port, in a temporary directory."""

from collections.abc import Iterator

import pytest

from tests.support.rgw import Rgw, run_rgw


@pytest.fixture(scope="session")
def rgw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rgw]:
    """Run Ceph RGW. It is started once for each test session, which takes about 12 s."""
    yield from run_rgw(tmp_path_factory.mktemp("rgw"))
