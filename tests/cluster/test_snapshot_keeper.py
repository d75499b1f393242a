"""The snapshot has the hints of all proxies, whichever proxy writes it."""

import pytest

from shadeproxy.cluster import snapshot_keeper
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.hints.changes import PutJob
from tests.support.cluster_log import FakeLog, Server
from tests.support.sharing import Sharing, dataset, until


@pytest.fixture
def server():
    return Server()


async def test_a_proxy_without_state_that_joins_an_empty_log_first_gets_the_hints_of_the_others(server):
    """Its empty snapshot is the first one in the log. Another proxy then writes one with its own hints."""
    async with Sharing(FakeLog(server), "b") as b:
        await b.register()
        server.up = False
        await until(lambda: b.replication.cut_off)
        server.lose()
        server.up = True
        async with Sharing(FakeLog(server), "a") as a:
            await until(a.knows)


async def test_hints_are_given_back_although_the_log_fails_in_between(server, monkeypatch):
    """Its second snapshot, the one that has all hints, cannot be written at first."""
    async with Sharing(FakeLog(server), "b") as b:
        await b.register()
        server.up = False
        await until(lambda: b.replication.cut_off)
        claim, failures = FakeLog.claim, []

        async def failing(self, name, value, *, instead_of=None):
            if self is b.log and instead_of is not None and len(failures) < 2:
                failures.append(name)
                raise ClusterUnavailable("no answer in time")
            return await claim(self, name, value, instead_of=instead_of)

        monkeypatch.setattr(snapshot_keeper, "_LOOK_S", 0.2)
        monkeypatch.setattr(FakeLog, "claim", failing)
        server.lose()
        server.up = True
        async with Sharing(FakeLog(server), "a") as a:
            await until(a.knows)
        assert failures


async def test_proxies_that_put_their_hints_into_an_empty_log_at_once_lose_none(server):
    """Only one of their snapshots takes the place of the first one. The others must write again."""
    owners = [Sharing(FakeLog(server), name) for name in "bcd"]
    async with Sharing(FakeLog(server), "a") as a, owners[0], owners[1], owners[2]:
        for one in owners:
            one.hints.put_dataset(dataset())
            PutJob(f"of-{one.name}", "train", 1, 1.0, 3600.0).apply(one.hints, 0.0)
        a.keeper.followed.life = "another"
        await a.keeper._write(a.keeper._sealed)
        for one in owners:
            one.keeper.look.set()
        for one in (a, *owners):
            for job in ("of-b", "of-c", "of-d"):
                await until(lambda one=one, job=job: one.knows(job))
