"""While no client reads, one process of the proxy asks the origin whether it still answers. Each of these
requests is counted.
"""

import pytest

from tests.support.served import wait_for


@pytest.mark.slow
def test_only_the_coordinator_asks_and_the_statistics_count_it(serve, fake_origin):
    fake_origin.objects["/data/k"] = b"x" * 1_000
    proxy = serve(origin__endpoint=fake_origin.url, origin__credentials="anonymous", s3__workers="3")
    for _ in range(20):
        proxy.client().get_object(Bucket="data", Key="k")["Body"].read()

    def probes():
        return proxy.stats()["origin"]["health"]["probes"]

    assert wait_for(lambda: probes() >= 2, 60.0)
    counted = probes()
    asked = [(method, path) for method, path, _ in fake_origin.asked if path.partition("?")[0] == "/"]
    assert counted <= len(asked) <= probes()
    assert {method for method, _ in asked} == {"GET"}
    metrics = proxy.call("GET", "/metrics").decode()
    assert f"shadeproxy_origin_probes_total {probes()}.0\n" in metrics
    assert "shadeproxy_origin_up 1.0\n" in metrics
