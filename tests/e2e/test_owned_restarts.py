"""Proxies with page ownership whose Redis or Valkey restarts before their leases are over."""

from tests.support.served import wait_for

from .owned import cluster, get, put, settled, shares


def test_no_lease_ends_when_the_engine_is_killed_and_started_at_once(join, engine):
    proxies = [join(cluster__lease="9 s") for _ in range(3)]
    settled(*proxies)
    keys = [share[0] for share in shares(proxies)]
    for key in keys:
        get(proxies[0], key)
    before = cluster(proxies[0])["settled"]
    lapses = [proxy.stats()["cluster"]["lapses"] for proxy in proxies]
    engine.kill()
    engine.start()
    number = 0
    while not all(cluster(proxy)["settled"] > before for proxy in proxies):
        number += 1
        for proxy, key in zip(proxies[1:] + proxies[:1], keys, strict=True):
            put(proxy, key, f"{number}".encode())
            assert {get(one, key)[0] for one in proxies} == {f"{number}".encode()}
    settled(*proxies)
    assert [proxy.stats()["cluster"]["lapses"] for proxy in proxies] == lapses
    wait_for(lambda: get(proxies[0], keys[0])[1]["x-shade-cache"] == "ram")
