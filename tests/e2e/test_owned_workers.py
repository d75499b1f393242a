"""Three proxies of two processes each that share their pages, with a real Redis or Valkey: workers relay reads
to the other proxies, and answer hits of this one's share while the lease lasts.
"""

import signal

import pytest

from tests.support.served import opened, wait_for
from tests.support.workers import wait_for_workers, worker_pids

from .owned import KEYS, cluster, get, owner_of, put, sent_bodies, settled, shares


@pytest.fixture
def three(join, late_writes_end_soon):
    proxies = [join(s3__workers="2") for _ in range(3)]
    for proxy in proxies:
        wait_for_workers(proxy)
    settled(*proxies)
    return proxies


def test_each_object_is_read_once_whichever_process_is_asked(three, origin):
    for _ in range(3):
        for proxy in three:
            for key in KEYS:
                assert get(proxy, key)[0] == key.encode() * 500
    assert sent_bodies(origin) == len(KEYS)
