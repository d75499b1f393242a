"""The processor time of a proxy is charged to the job that reads, with one process and with three."""

import http.client
from pathlib import Path

import pytest

from shadeproxy.telemetry.processor import used_cpu_s
from tests.support.served import wait_for
from tests.support.workers import wait_for_workers

pytestmark = pytest.mark.new_interpreter

READS = 600
SIZE = 100_000


@pytest.fixture(params=["1", "3"])
def served(request, serve, fake_origin):
    fake_origin.objects["/data/one"] = b"x" * SIZE
    environment = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    proxy = serve(None, environment, origin__endpoint=fake_origin.url, s3__workers=request.param)
    wait_for_workers(proxy)
    return proxy


def processes(served):
    first = served.process.pid
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return [first, *map(int, children)]


def spent_s(numbers):
    return used_cpu_s(numbers) - used_cpu_s()


def test_epochs_have_the_processor_time_of_all_processes(served):
    numbers = processes(served)
    served.call("PUT", "/v1/jobs/resnet", {})
    assert served.get("/v1/jobs/resnet/profile")["epochs"] == []  # The time spent before belongs to no job.
    before_s = spent_s(numbers)
    for epoch in range(2):
        for _ in range(4):
            connection = http.client.HTTPConnection(served.s3.partition("://")[2], timeout=20)
            for _ in range(READS // 8):
                connection.request("GET", "/data/one", headers={"x-shade-job": f"resnet;epoch={epoch}"})
                assert len(connection.getresponse().read()) == SIZE
            connection.close()

    def epochs():
        return served.get("/v1/jobs/resnet/profile")["epochs"]

    # Workers report their reads to the coordinator some time later.
    wait_for(lambda: sum(one["samples"] for one in epochs()) == READS)
    charged_s = [one["cpu_s"] for one in epochs()]
    assert all(charged_s)
    assert sum(charged_s) == pytest.approx(spent_s(numbers) - before_s, rel=0.5)
    assert served.get("/v1/jobs/resnet/profile")["cores"] >= 1
