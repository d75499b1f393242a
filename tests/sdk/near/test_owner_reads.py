"""Samples are read from the proxies that own them. If such a read fails, they are read from the
called proxy.
"""

import json
import logging
import random

import numpy as np
import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk import frames, owner_reads, owners
from shadeproxy_sdk.bulk_calls import BulkCalls

IDS = list(range(40))
ANY = 0xFFFF


class Cluster:
    """The called proxy and two other proxies, with the same data. ``owner`` has the number of the owning
    proxy for each sample.
    """

    def __init__(self, near, tmp_path):
        self.names = ["a", "b", "c"]
        self.proxies = [near.proxy]
        self.nears = [near]
        for name in self.names[1:]:
            proxy = type(near.proxy)()
            proxy.objects, proxy.datasets = near.proxy.objects, near.proxy.datasets
            directory = tmp_path / name
            directory.mkdir()
            self.proxies.append(proxy)
            self.nears.append(type(near)(proxy, directory))
        for name, proxy in zip(self.names, self.proxies, strict=True):
            proxy.more["cluster"] = lambda handler, _, name=name: handler.reply(
                200, b'{"node": "%b"}' % name.encode()
            )
        self.controls = [proxy.url.removeprefix("http://") for proxy in self.proxies]
        self.owner = [i % 3 for i in IDS]
        self.tag = "1"
        self.asked = []
        self.proxies[0].offers["owners"] = True

    def publish(self, manifest):
        self.proxies[0].more[f"datasets/{manifest.name}/owners"] = self.tell

    def tell(self, handler, _body):
        self.asked.append(handler.headers["If-None-Match"])
        tag = f'"{self.tag}"'
        if handler.headers["If-None-Match"] == tag:
            handler.reply(304, ETag=tag)
            return
        nodes = [
            {"node": name, "control": control}
            for name, control in zip(self.names, self.controls, strict=True)
        ]
        head = json.dumps({"here": "a", "nodes": nodes}).encode()
        body = len(head).to_bytes(4, "little") + head + np.array(self.owner, "<u2").tobytes()
        handler.reply(200, body, **{"Content-Type": "application/vnd.shadeproxy.owners", "ETag": tag})

    def batches(self):
        """Return, for each proxy, the samples that batch calls asked it for since the last call of this
        method.
        """
        found = []
        for near in self.nears:
            keys = near.proxy.keys("train", "")
            found.append(sorted(keys.index(item["key"]) for call in near.batches for item in call["items"]))
            near.batches.clear()
        return found

    def of(self, number):
        return [i for i in IDS if self.owner[i] == number]


@pytest.fixture
def cluster(near, tmp_path):
    cluster = Cluster(near, tmp_path)
    yield cluster
    for proxy in cluster.proxies[1:]:
        proxy.die()


@pytest.fixture
def manifest(client, cluster):
    manifest = client.manifest(bucket="train")
    cluster.publish(manifest)
    return manifest


def test_each_sample_is_asked_from_its_owner(client, manifest, cluster, near):
    rng = random.Random(0)
    for ids in (IDS, rng.choices(IDS, k=70), [3], [1, 1, 4]):
        assert client.read_many(manifest, ids) == [near.bodies[i] for i in ids]
        assert cluster.batches() == [sorted({i for i in ids if i % 3 == number}) for number in range(3)]
    assert not near.proxy.reads
    assert client.connections.owners.failures == 0
    calls = [path for _, path, _ in cluster.proxies[1].calls]
    assert calls.count("cluster") == 1, "the name of a proxy is checked once"


def test_all_proxies_prepare_their_answers_while_the_first_one_is_read(
    client, manifest, cluster, near, monkeypatch
):
    client.read_many(manifest, IDS)
    events, send, receive = [], BulkCalls.send, frames.receive

    def note_send(calls, path, kind, request, positions, *rest, **options):
        if path == "/v1/batch":  # A locate call may come before the batch call, and does not count.
            events.append(("asks", positions[0] % 3))
        return send(calls, path, kind, request, positions, *rest, **options)

    def note_receive(answer, positions, *rest):
        events.append(("reads", positions[0] % 3))
        receive(answer, positions, *rest)

    monkeypatch.setattr(BulkCalls, "send", note_send)
    monkeypatch.setattr(frames, "receive", note_receive)
    assert client.read_many(manifest, IDS) == near.bodies
    assert events == [("asks", 1), ("asks", 2), ("asks", 0), ("reads", 1), ("reads", 2), ("reads", 0)]


def test_an_owner_is_asked_once_if_memory_does_not_suffice_for_its_answer(
    client, manifest, cluster, near, monkeypatch
):
    client.read_many(manifest, IDS)  # After this read the next calls use connections that are open already.
    cluster.batches()
    receive = frames.receive

    def lack_memory(answer, positions, *rest):
        receive(answer, positions, *rest)
        if positions[0] % 3 == 1:
            raise MemoryError

    monkeypatch.setattr(frames, "receive", lack_memory)
    with pytest.raises(MemoryError):
        client.read_many(manifest, IDS)
    assert cluster.batches()[1:] == [cluster.of(1), cluster.of(2)]
    assert client.connections.owners.failures == 0, "no owner is to blame"
    monkeypatch.setattr(frames, "receive", receive)
    assert client.read_many(manifest, IDS) == near.bodies


def test_the_called_proxy_locates_what_it_caches_itself(client, manifest, cluster, near):
    near.keep_all()
    for _ in range(2):
        assert client.read_many(manifest, IDS) == near.bodies
        assert cluster.batches() == [[], cluster.of(1), cluster.of(2)]
    located = {item["key"] for call in near.locates for item in call["items"]}
    assert located == {near.proxy.keys("train", "")[i] for i in cluster.of(0)}


def test_samples_that_no_proxy_caches_are_asked_from_the_called_one(client, manifest, cluster, near):
    cluster.owner = [ANY if i % 2 else 1 for i in IDS]
    assert client.read_many(manifest, IDS) == near.bodies
    assert cluster.batches() == [IDS[1::2], IDS[::2], []]


def test_samples_of_a_dead_owner_come_by_the_called_proxy_and_that_is_logged_once(
    client, manifest, cluster, near, caplog
):
    caplog.set_level(logging.INFO, "shadeproxy_sdk")
    cluster.proxies[2].die()
    for _ in range(3):
        assert client.read_many(manifest, IDS) == near.bodies
        own, other, _ = cluster.batches()
        assert (own, other) == (sorted(cluster.of(0) + cluster.of(2)), cluster.of(1))
    assert client.connections.owners.failures == 3, "in two batches it was not asked"
    assert [record.message for record in caplog.records if "node c" in record.message]
    assert len(caplog.records) == 1
    assert not near.proxy.reads


def test_samples_that_an_owner_cuts_off_come_by_the_called_proxy(client, manifest, cluster, near):
    cluster.nears[1].cuts = [200]
    assert client.read_many(manifest, IDS) == near.bodies
    own, other, _ = cluster.batches()
    assert other == cluster.of(1)
    assert set(own) < set(cluster.of(0) + cluster.of(1)), "samples that came before the cut are kept"
    assert not near.proxy.reads


@pytest.mark.parametrize("how", ["refused", "damaged", "silent"])
def test_an_owner_that_answers_badly_costs_no_sample(make_client, cluster, near, how, silent_server):
    client = make_client(near.proxy, timeout_s=0.5)
    manifest = client.manifest(bucket="train")
    cluster.publish(manifest)
    if how == "refused":
        cluster.nears[1].refusals["batch"] = 404, "unknown_name"
    elif how == "damaged":
        cluster.nears[1].mangle = lambda body: body[:7] + b"\x01" + body[8:]
    else:
        cluster.controls[1] = f"127.0.0.1:{silent_server}"
    assert client.read_many(manifest, IDS) == near.bodies
    own, _, third = cluster.batches()
    assert (own, third) == (sorted(cluster.of(0) + cluster.of(1)), cluster.of(2))
    assert not near.proxy.reads


def test_another_server_at_an_owners_address_is_not_asked(client, manifest, cluster, near):
    cluster.controls[1] = cluster.controls[2]
    assert client.read_many(manifest, IDS) == near.bodies
    assert cluster.batches() == [sorted(cluster.of(0) + cluster.of(1)), [], cluster.of(2)]


def test_an_address_that_means_the_own_host_is_not_asked_from_another_host(
    client, manifest, cluster, near, monkeypatch
):
    monkeypatch.setattr(owner_reads, "is_loopback", lambda host: host == "localhost")
    cluster.controls[1] = cluster.controls[1].replace("127.0.0.1", "localhost")
    assert client.read_many(manifest, IDS) == near.bodies
    assert cluster.batches() == [sorted(cluster.of(0) + cluster.of(1)), [], cluster.of(2)]


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True), ("127.8.0.1", True), ("[::1]", True), ("0.0.0.0", True), ("[::]", True),
        ("localhost", True), ("10.0.0.1", False), ("node-3.local", False), ("[2001:db8::1]", False),
    ],
)  # fmt: skip
def test_which_addresses_mean_the_own_host(host, own):
    assert owner_reads.is_loopback(host) is own


def test_a_token_never_leaves_a_secure_connection(client, manifest, cluster, near, monkeypatch):
    monkeypatch.setattr(client._control, "secure", True)
    assert client.read_many(manifest, IDS) == near.bodies
    assert cluster.batches() == [IDS, [], []]


def test_other_proxies_get_the_same_token(make_client, cluster, near):
    client = make_client(near.proxy, token="t0ken")
    manifest = client.manifest(bucket="train")
    cluster.publish(manifest)
    assert client.read_many(manifest, IDS) == near.bodies
    assert {fields["authorization"] for one in cluster.nears for fields in one.headers} == {"Bearer t0ken"}


def test_new_owners_are_asked_when_the_view_has_changed(client, manifest, cluster, near, monkeypatch):
    monkeypatch.setattr(owners, "REFRESH_S", 0.0)
    for _ in range(3):
        assert client.read_many(manifest, IDS) == near.bodies
        cluster.batches()
    assert cluster.asked == [None, '"1"', '"1"']
    cluster.owner, cluster.tag = [1] * len(IDS), "2"
    assert client.read_many(manifest, IDS) == near.bodies
    assert cluster.batches() == [[], IDS, []]


def test_owners_are_asked_for_every_few_seconds_only(client, manifest, cluster, near):
    for _ in range(3):
        assert client.read_many(manifest, IDS) == near.bodies
    assert len(cluster.asked) == 1


def test_owners_that_cannot_be_read_are_not_used(client, manifest, cluster, near):
    cluster.owner = [1] * (len(IDS) - 1)
    assert client.read_many(manifest, IDS) == near.bodies
    assert cluster.batches() == [IDS, [], []]


def test_a_proxy_that_knows_no_others_reads_all_by_itself(client, manifest, cluster, near):
    """A called proxy that names no other proxies is asked for all samples. A proxy whose log does not answer
    has no view: it offers the list of owners, and the list is empty.
    """
    cluster.names, cluster.controls, cluster.owner = [], [], []
    assert client.read_many(manifest, IDS) == near.bodies
    assert cluster.batches() == [IDS, [], []]


def test_owners_bring_their_samples_while_the_called_proxy_refuses(client, manifest, cluster, near):
    assert client.read_many(manifest, IDS) == near.bodies
    near.refusals["batch"] = 500, "internal"
    cluster.batches()
    assert client.read_many(manifest, IDS) == near.bodies
    assert sorted(key for _, key, _ in near.proxy.reads) == sorted(
        near.proxy.keys("train", "")[i] for i in cluster.of(0)
    )


def test_samples_of_a_manifest_that_is_not_registered_come_from_the_called_proxy(client, cluster, near):
    keys = near.proxy.keys("train", "")
    manifest = shade.Manifest.from_entries("own", [shade.Entry("train", key) for key in keys])
    assert client.read_many(manifest, IDS) == near.bodies
    assert cluster.batches() == [IDS, [], []]


def test_only_the_owners_of_the_last_data_sets_are_kept():
    kept = owners.Owners(clock=lambda: 0.0)
    names = [(f"d{i}", "digest") for i in range(6)]
    column = owners.OwnerColumn("1", "a", (), np.zeros(0, np.uint16))
    for name in names:
        assert kept.is_due(name)
        kept.put(name, column)
    assert [kept.find(name) is not None for name in names] == [False] * 2 + [True] * 4
    assert [kept.is_due(name) for name in names] == [True] * 2 + [False] * 4


def test_the_owners_are_asked_for_again_after_a_failure_but_not_while_a_node_is_passed_over():
    now_s = 0.0
    kept = owners.Owners(clock=lambda: now_s)
    assert kept.is_due(("d", "digest"))
    now_s = 5.0
    kept.passed_over()
    assert not kept.is_due(("d", "digest"))
    kept.failed(("d", "digest"), "b")
    now_s = 6.0
    assert kept.is_due(("d", "digest"))
    assert kept.failures == 2


def test_a_column_that_comes_after_its_data_set_was_dropped_harms_no_later_read():
    kept = owners.Owners()
    names = [(f"d{number}", "digest") for number in range(9)]
    column = owners.OwnerColumn("1", "a", (), np.empty(0, "<u2"))
    for name in names[:5]:
        assert kept.is_due(name)
        kept.put(name, column)
    kept.put(names[0], column)  # This column was requested before the dataset was dropped.
    for name in names[5:]:
        assert kept.is_due(name)
        kept.put(name, column)
    assert kept.find(names[0]) is None
