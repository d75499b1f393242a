"""Three proxies as processes, with a real Redis or Valkey, in a cluster where each object has one owner.

The origin of the cluster is one more proxy without a cache. It is an S3 server whose statistics count the
requests.
"""

import http.client
import json
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.certificate import write_certificate
from tests.support.copied import run_command
from tests.support.served import opened, readyz, wait_for

from .owned import (
    CALM,
    COUNT,
    KEYS,
    LEASE_S,
    Traffic,
    cluster,
    get,
    owner_of,
    put,
    put_until,
    sent_bodies,
    settled,
    shares,
)


def connected(proxy):
    return http.client.HTTPConnection(proxy.s3.removeprefix("http://"), timeout=20)


def read_again(connection, key):
    """Return the body of an object, read over a connection that stays open."""
    connection.request("GET", f"/data/{key}")
    return connection.getresponse().read()


def origin_requests(origin):
    """Return how many requests for objects the origin has answered so far."""
    found = origin.stats()["requests"]["by_operation"]
    return sum(sum(one["statuses"].values()) for name, one in found.items() if name.endswith("Object"))


def answers_alone(origin, proxy, key):
    """Return whether the proxy answers a read without a request to the origin."""
    get(proxy, key)
    before = origin_requests(origin)
    assert get(proxy, key)[1]["x-shade-cache"] == "ram"
    return origin_requests(origin) == before


def test_each_object_is_read_from_the_origin_once(three, origin):
    for proxy in three:
        for key in KEYS:
            body, fields = get(proxy, key)
            assert body == key.encode() * 500
            owner = owner_of(key, three)
            assert fields["x-shade-node"] == (None if owner is proxy else cluster(owner)["node"])
    assert sent_bodies(origin) == COUNT
    assert [one.stats()["tiers"]["ram"]["pages"] for one in three] == [len(keys) for keys in shares(three)]
    assert sum(one.stats()["totals"]["requests"] for one in three) == 3 * COUNT, "each read counts once"
    node = cluster(three[0])["node"]
    relayed = [row for one in three[1:] for row in one.stats()["cluster"]["relayed"] if row["peer"] == node]
    assert sum(row["requests"] for row in relayed) == 2 * len(shares(three)[0])
    assert b'shadeproxy_cluster_relayed_bytes_total{peer="' in three[0].call("GET", "/metrics")


@pytest.mark.usefixtures("late_writes_end_soon")
def test_a_write_through_any_proxy_is_seen_at_once_through_every_other(three):
    for number, writer in enumerate(three * 2):
        for key in KEYS[:6]:
            body = f"{number}-{key}".encode()
            put(writer, key, body)
            assert [get(reader, key)[0] for reader in three] == [body] * 3
    client = three[1].client()
    client.delete_objects(Bucket="data", Delete={"Objects": [{"Key": key} for key in KEYS[:6]]})
    for proxy in three:
        for key in KEYS[:6]:
            with pytest.raises(urllib.error.HTTPError) as raised:
                get(proxy, key)
            assert raised.value.code == 404
    client.copy_object(Bucket="data", Key=KEYS[0], CopySource=f"data/{KEYS[7]}")
    assert get(three[2], KEYS[0])[0] == KEYS[7].encode() * 500


def test_a_multipart_upload_through_any_proxy_replaces_what_all_have_read(three):
    part = bytes(range(256)) * (20 << 10)
    for writer in three:
        for key in KEYS[:3]:
            for proxy in three:
                get(proxy, key)
            client, name = writer.client(), {"Bucket": "data", "Key": key}
            upload = client.create_multipart_upload(**name)["UploadId"]
            tags = [
                client.upload_part(**name, UploadId=upload, PartNumber=number, Body=part)["ETag"]
                for number in (1, 2)
            ]
            parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
            client.complete_multipart_upload(**name, UploadId=upload, MultipartUpload={"Parts": parts})
            assert {hash(get(proxy, key)[0]) for proxy in three} == {hash(part * 2)}
            put(writer, key, b"short again")


def test_a_batch_at_one_proxy_has_the_objects_of_all(three, origin):
    items = [{"bucket": "data", "key": key} for key in KEYS]
    for proxy in three * 2:
        body = proxy.call("POST", "/v1/batch", {"items": items})
        assert all(key.encode() * 500 in body for key in KEYS)
    assert sent_bodies(origin) == COUNT
    assert sum(one.stats()["totals"]["requests"] for one in three) == 6 * COUNT, "each read counts once"


def test_warming_at_every_proxy_loads_each_object_once(three, origin):
    for proxy in three:
        began = json.loads(proxy.call("POST", "/v1/warm", {"uri": "s3://data/"}))
        ended = wait_for(
            lambda proxy=proxy, name=began["id"]: (
                found if (found := proxy.get(f"/v1/operations/{name}"))["state"] != "running" else None
            )
        )
        assert (ended["done"], ended["failed"]) == (COUNT, 0)
    assert sent_bodies(origin) == COUNT
    assert [one.stats()["tiers"]["ram"]["pages"] for one in three] == [len(keys) for keys in shares(three)]


@pytest.mark.usefixtures("late_writes_end_soon")
def test_reads_and_writes_go_on_when_an_owner_is_killed(three):
    a, b, c = three
    *_, keys = shares(three)
    other, keys = keys[4], keys[:4]
    with Traffic([a, b], a, keys) as traffic:
        c.stop(signal.SIGKILL)
        took_s = put_until(b, other, b"x")
        traffic.goes_on(writes=True)
    traffic.assert_right()
    # A killed owner is retired after 1.25 leases. These begin at most one beat after the owner's last beat.
    # The remaining time allows for a busy machine.
    assert took_s < 2 * LEASE_S + 2 * LEASE_S / 3 + 5
    assert {row["result"] for row in a.stats()["cluster"]["relayed"]} > {"ok"}
    c.start()
    settled(*three)
    for key in keys:
        put(b, key, b"back")
        assert {get(proxy, key)[0] for proxy in three} == {b"back"}


@pytest.mark.usefixtures("late_writes_end_soon")
@pytest.mark.parametrize("fault", ["stop", "kill", "flush"])
def test_nothing_is_stale_while_the_engine_fails(three, engine, fault):
    keys = [share[0] for share in shares(three)]
    with Traffic(three[:2], three[2], keys) as traffic:
        if fault == "flush":
            engine.command("FLUSHALL")
        else:
            engine.stop_process() if fault == "stop" else engine.kill()
            wait_for(lambda: all(cluster(proxy)["lease_s"] == 0 for proxy in three))
            with pytest.raises(urllib.error.HTTPError) as raised:
                put(three[0], keys[0], b"no")
            assert raised.value.code == 503
            status, body = readyz(three[0])
            assert status == 200
            assert any("writes are refused" in warning for warning in body["warnings"])
            traffic.goes_on()
            engine.continue_process() if fault == "stop" else engine.start()
        settled(*three)
        traffic.goes_on(writes=True)
    traffic.assert_right()
    assert all(proxy.stats()["cluster"]["distrusted"] > 1 for proxy in three)


@pytest.mark.usefixtures("late_writes_end_soon")
def test_an_owner_that_was_paused_never_serves_what_was_overwritten_meanwhile(three, origin):
    a, b, c = three
    *_, keys = shares(three)
    keys = keys[:4]
    for key in keys:
        put(a, key, b"old")
        assert get(c, key)[0] == b"old"
        wait_for(lambda key=key: answers_alone(origin, c, key))
    # These requests wait in the kernel. When c continues, it reads them before it sends any beat.
    waiting = [(key, connected(c)) for key in keys for _ in range(8)]
    for key, connection in waiting:
        assert read_again(connection, key) == b"old"
    c.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(3 * LEASE_S)
        for key in keys:
            put_until(b, key, b"new")
        assert {get(a, key)[0] for key in keys} == {b"new"}
        for key, connection in waiting:
            connection.request("GET", f"/data/{key}")
    finally:
        c.process.send_signal(signal.SIGCONT)
    for _, connection in waiting:
        assert connection.getresponse().read() == b"new"
        connection.close()
    for _ in range(20):
        for proxy in three:
            assert {get(proxy, key)[0] for key in keys} == {b"new"}
    settled(*three)
    assert {get(c, key)[0] for key in keys} == {b"new"}


@pytest.mark.usefixtures("late_writes_end_soon")
def test_writes_at_an_owner_that_stands_still_are_answered_when_its_lease_is_over(three, origin):
    """Writes whose owner is stopped are answered once the lease of the owner is over. The owner's connections
    stay open, so only the end of the lease shows that the owner will not answer.
    """
    a, b, c = three
    *_, keys = shares(three)
    client, name = a.client(), {"Bucket": "data", "Key": keys[1]}
    upload = client.create_multipart_upload(**name)["UploadId"]
    tag = client.upload_part(**name, UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
    document = f"<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>"
    document = f"<CompleteMultipartUpload>{document}</CompleteMultipartUpload>".encode()
    writes = [
        ("PUT", keys[0], b"put"),
        ("POST", f"{keys[1]}?uploadId={upload}", document),
        ("DELETE", keys[2], None),
        ("PUT", keys[3], bytes(16 << 20)),
    ]
    put(a, keys[0], b"old")

    def answer_to(method, key, body):
        request = urllib.request.Request(f"{a.s3}/data/{key}", data=body, method=method)
        try:
            opened(request, timeout_s=30)
        except urllib.error.HTTPError as error:
            return error.code, b"may have carried out the write" in error.read()
        return None  # On a slow machine the owner may lose its seat before this write is sent.

    c.process.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(writes)) as pool:
            answers = list(pool.map(answer_to, *zip(*writes, strict=True)))
        assert set(answers) <= {(500, True), None}
        put_until(b, keys[0], b"new")
    finally:
        c.process.send_signal(signal.SIGCONT)
    settled(*three)
    for proxy in three:
        assert get(proxy, keys[0])[0] == get(origin, keys[0])[0]
    put(b, keys[0], b"newer")
    assert {get(proxy, keys[0])[0] for proxy in three} == {b"newer"}


def test_a_restarted_proxy_has_its_share_and_its_pages_again(three, origin):
    a, b, c = three
    before = shares(three)
    for key in KEYS:
        get(a, key)
    assert sent_bodies(origin) == COUNT
    c.stop()
    for key in before[2]:
        assert get(b, key)[0] == key.encode() * 500
    read = sent_bodies(origin)
    assert read == COUNT + len(before[2]), "no other proxy has cached the share meanwhile"
    c.start_whole()
    settled(*three)
    assert shares(three) == before
    for key in KEYS:
        assert get(a, key)[0] == key.encode() * 500
    assert sent_bodies(origin) == read


def test_a_proxy_that_stops_finishes_what_it_began(three):
    a, b, c = three
    *_, keys = shares(three)
    with Traffic([a, b], a, keys[:4]) as traffic:
        assert c.stop() == 0
        traffic.goes_on(writes=True)
    traffic.assert_right()


def test_a_proxy_with_other_settings_gets_no_share_and_asks_no_other(join, three):
    other = join(cache__page_size="2 MiB")
    wait_for(lambda: cluster(other)["refusal"])
    assert any("must agree: cache.page_size" in warning for warning in readyz(other)[1]["warnings"])
    assert get(other, KEYS[0])[0] == KEYS[0].encode() * 500
    assert other.stats()["cluster"]["relayed"] == []
    with pytest.raises(urllib.error.HTTPError) as raised:
        put(other, KEYS[0], b"x")
    assert raised.value.code == 503
    assert "This proxy has no part in its cluster, so nothing was written" in raised.value.read().decode()
    settled(*three)


def test_a_proxy_that_keeps_its_own_pages_among_them_is_named_by_the_doctor(join, three):
    alone = join(cluster__pages="local")
    wait_for(lambda: cluster(alone)["refusal"])
    findings = {one["name"]: one for one in alone.get("/v1/doctor")["findings"]}
    cause = findings["refused by the cluster"]["cause"]
    assert 'has cluster.pages = "owned", this one "local"; so other proxies do not learn' in cause
    settled(*three)


def test_pinned_pages_are_given_up_when_their_share_moves(three, join):
    a = three[0]
    a.call("POST", "/v1/pin", {"uri": "s3://data/"})
    wait_for(lambda: all(proxy.get("/v1/pins")["pins"] for proxy in three))
    for key in KEYS:
        get(a, key)
    held = sum(pinned_bytes(proxy) for proxy in three)
    assert held > 0
    another = join()
    settled(*three, another)
    moved = [key for key in KEYS if get(a, key)[1]["x-shade-node"] == cluster(another)["node"]]
    assert moved
    kept_bytes = held * (1 - len(moved) / len(KEYS))
    wait_for(lambda: sum(pinned_bytes(proxy) for proxy in three) == pytest.approx(kept_bytes))


def pinned_bytes(proxy):
    return proxy.stats()["tiers"]["ram"]["pinned_bytes"]


def test_a_bucket_that_is_changed_is_distrusted_by_all(three):
    client = three[0].client()
    before = [cluster(proxy)["distrusted"] for proxy in three]
    client.create_bucket(Bucket="other")
    client.put_object(Bucket="other", Key="x", Body=b"x")
    client.delete_object(Bucket="other", Key="x")
    client.delete_bucket(Bucket="other")
    assert all(cluster(proxy)["distrusted"] > then for proxy, then in zip(three, before, strict=True))


def test_proxies_speak_tls_with_each_other(join, tmp_path):
    made = write_certificate(tmp_path)
    tls = {"s3__tls__cert": str(made.cert), "s3__tls__key": str(made.key)}
    a, b = (join(**tls, **CALM, cluster__peer_ca_file=str(made.authority)) for _ in range(2))
    settled(a, b)
    context = made.client_context()
    for number, writer in enumerate((a, b)):
        for name in KEYS[:8]:
            body = f"{number} {name}".encode()
            request = urllib.request.Request(f"{writer.s3}/data/{name}", data=body, method="PUT")
            urllib.request.urlopen(request, context=context).close()
            for proxy in (a, b):
                with urllib.request.urlopen(f"{proxy.s3}/data/{name}", context=context) as answer:
                    assert answer.read() == body
    assert {row["result"] for row in a.stats()["cluster"]["relayed"]} == {"ok"}


def test_the_listener_for_proxies_serves_no_client(three):
    address = next(node["peer"] for node in cluster(three[0])["nodes"])
    for method in ("GET", "PUT"):
        request = urllib.request.Request(f"http://{address}/data/{KEYS[0]}", method=method)
        with pytest.raises(urllib.error.HTTPError) as raised:
            opened(request, timeout_s=10)
        assert raised.value.code == 403


def test_announced_orders_bring_hits_in_the_caches_of_all(join, bucket_directory):
    """Announced orders bring hits in the caches of all proxies. Two ranks draw with replacement, each at its
    own proxy with room for a fifth of the data. Each proxy sees half of the reads of both ranks.
    """
    count, size = 200, 1024 + 256
    (bucket_directory / "train").mkdir()
    for n in range(count):
        (bucket_directory / "train" / f"{n:05d}").write_bytes(n.to_bytes(4, "little") * 256)
    proxies = [join(cache__ram__capacity=str(count // 5 * size)) for _ in range(2)]
    settled(*proxies)
    proxies[0].call("PUT", "/v1/datasets/d", {"bucket": "train", "prefix": ""})
    proxies[0].call("PUT", "/v1/jobs/j", {"dataset": "d", "world_size": 2})
    wait_for(lambda: [job["job"] for job in proxies[1].get("/v1/jobs")["jobs"]] == ["j"])
    drawn, hits, reads = np.random.default_rng(3), 0, 0
    for epoch in range(6):
        orders = [drawn.integers(0, count, count).tolist() for _ in proxies]
        for rank, (proxy, order) in enumerate(zip(proxies, orders, strict=True)):
            proxy.call("PUT", f"/v1/jobs/j/epochs/{epoch}/order?rank={rank}", {"ids": order})
        for samples in zip(*orders, strict=True):
            for rank, (proxy, sample) in enumerate(zip(proxies, samples, strict=True)):
                tag = {"x-shade-job": f"j;epoch={epoch};rank={rank}"}
                request = urllib.request.Request(f"{proxy.s3}/train/{sample:05d}", headers=tag)
                with urllib.request.urlopen(request) as answer:
                    assert answer.read() == sample.to_bytes(4, "little") * 256
                    if epoch:
                        reads += 1
                        hits += answer.headers["x-shade-cache"] in {"ram", "disk"}
    for proxy in proxies:
        assert proxy.get("/v1/jobs")["jobs"][0]["order"]["believed"]
    assert hits / reads > 0.5, "0.4 is the share that fits"


def shadeproxy(proxy, *arguments):
    """Run a ``shadeproxy`` command against a proxy. Return the exit status and all output."""
    ended = run_command(*arguments, "--url", proxy.control)
    return ended.returncode, ended.stdout + ended.stderr


def test_a_drained_proxy_serves_its_clients_with_what_the_others_cache(three):
    a, b, c = three
    status, said = shadeproxy(c, "cluster", "drain")
    assert status == 0, said
    assert f"{cluster(c)['node']} is drained" in said
    drained = [node for node in cluster(a)["nodes"] if node["weight"] == 0]
    assert [(node["node"], node["share"], node["away"]) for node in drained] == [
        (cluster(c)["node"], 0.0, False)
    ]
    pages = c.stats()["tiers"]["ram"]["pages"]
    for key in KEYS:
        put(c, key, b"new")
        assert [get(proxy, key)[0] for proxy in three] == [b"new"] * 3
        assert get(c, key)[1]["x-shade-node"] in {cluster(a)["node"], cluster(b)["node"]}
    assert c.stats()["tiers"]["ram"]["pages"] == pages == 0
    assert c.stats()["cluster"]["drained"] == 1
    assert shadeproxy(a, "cluster", "drain")[0] == 0
    status, said = shadeproxy(b, "cluster", "drain")
    assert status == 1
    assert "the only node here that has a weight" in said
    assert shadeproxy(a, "cluster", "drain", "--undo")[0] == 0
    c.stop()
    c.start()
    settled(*three)
    assert all(node["weight"] > 0 for node in cluster(a)["nodes"]), "a restart ends it"


def test_one_call_has_the_statistics_of_all_proxies_also_when_one_hangs(three):
    a, b, c = three
    for key in KEYS:
        for _ in range(3):
            get(a, key)
    status, said = shadeproxy(a, "stats", "--cluster")
    assert status == 0, said
    rows = [line.split() for line in said.splitlines()]
    assert ["all", f"{3 * COUNT}"] in [row[:2] for row in rows]
    for proxy, keys in zip(three, shares(three), strict=True):
        assert [cluster(proxy)["node"], f"{3 * len(keys)}"] in [row[:2] for row in rows]
    metrics = a.call("GET", "/metrics").decode()
    assert f'shadeproxy_cluster_peer_breaker{{peer="{cluster(b)["node"]}"}} 0.0' in metrics
    assert "shadeproxy_cluster_engine_requests_total" in metrics
    assert a.stats()["cluster"]["engine_requests"] > 0
    assert a.stats()["cluster"]["view"] == a.stats()["cluster"]["settled"] > 0
    assert a.stats()["cluster"]["engine_s"] > 0
    node = cluster(c)["node"]
    c.process.send_signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        found = {one["node"]: one for one in a.get("/v1/stats?cluster=1")["nodes"]}
        assert time.monotonic() - began_s < 4.0
        # Node c is asked as long as it has its lease. After that it is away.
        assert "gave no answer in 2 s" in found[node]["problem"]
        assert found[cluster(b)["node"]]["problem"] == ""
    finally:
        c.process.send_signal(signal.SIGCONT)


def test_the_doctor_names_what_is_wrong_with_the_cluster(three, join, engine):
    findings = {one["name"] for one in three[0].get("/v1/doctor")["findings"]}
    assert findings <= {"event loop late"}  # A finding of this name only shows that the machine was busy.
    other = join(cache__page_size="2 MiB")
    wait_for(lambda: cluster(other)["refusal"])
    findings = {one["name"]: one for one in other.get("/v1/doctor")["findings"]}
    assert "other settings in which nodes must agree" in findings["refused by the cluster"]["cause"]
    engine.kill()
    wait_for(lambda: cluster(three[0])["cut_off"])
    findings = {one["name"]: one for one in three[0].get("/v1/doctor")["findings"]}
    assert findings["cut off from the cluster"]["severity"] == "wrong"
    assert "lease lapsed" in findings
