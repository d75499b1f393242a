"""Clients with an upstream of their own, beside clients that share the proxy's upstream, at every process."""

import http.client
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from tests.support.served import wait_for
from tests.support.workers import wait_for_workers

from .fake_origin import FakeOrigin, signer_of

BODY = b"body " * 400
SECRETS = {"shared": "shared-secret", "own": "own-secret"}
"""Secrets of two clients. Reads of "shared" are signed with the proxy's own credentials, FIRST. Reads of
"own" are signed with this client's credentials, OWN.
"""


class Client:
    """A client with one connection, which one process of the proxy serves."""

    def __init__(self, served, who: str) -> None:
        self.who = who
        self.host = served.s3.partition("://")[2]
        self.connection = http.client.HTTPConnection(self.host, timeout=20)

    def ask(self, key: str = "k", method: str = "GET", *, plain: bool = True) -> tuple[int, str]:
        """Send a signed request, and return status and source of the answer. With ``plain=False`` the request
        has an additional field. So no process finds the request in its request cache.
        """
        path = f"/data/{key}"
        signed = sign_request(
            method=method, raw_path=path, raw_query="", headers=[("host", self.host)],
            payload_hash=EMPTY_SHA256, credentials=Credentials(self.who, SECRETS[self.who]),
            region="us-east-1", now_s=time.time(),
        )  # fmt: skip
        self.connection.request(method, path, headers=dict(signed) | ({} if plain else {"x-odd": "1"}))
        answer = self.connection.getresponse()
        body = answer.read()
        assert body == (BODY if answer.status == 200 and method == "GET" else body)
        assert BODY[:100] not in body or answer.status == 200
        return answer.status, answer.headers["x-shade-cache"]


class Scene:
    """A proxy of two processes. ``by_worker`` has clients whose connections the worker serves."""

    def __init__(self, served, origin: FakeOrigin, by_worker: dict[str, Client]) -> None:
        self.served, self.origin, self.by_worker = served, origin, by_worker

    def everywhere(self, who: str, key: str = "k") -> set[tuple[int, str]]:
        """Return the answers of all processes to the same read, sent with and without the
        additional field.
        """
        found = {self.by_worker[who].ask(key), self.by_worker[who].ask(key, plain=False)}
        for _ in range(10):
            with closing((client := Client(self.served, who)).connection):
                found |= {client.ask(key), client.ask(key, plain=False), client.ask(key)}
        return found

    def alone(self, who: str, key: str = "k") -> tuple[int, str] | None:
        """Return the worker's answer to a read while the coordinator is stopped. Return None if the worker
        needs the coordinator for the answer.
        """
        self.served.process.send_signal(signal.SIGSTOP)
        client = self.by_worker[who]
        assert client.connection.sock is not None
        client.connection.sock.settimeout(1.0)
        try:
            return client.ask(key)
        except TimeoutError:
            return None
        finally:
            self.served.process.send_signal(signal.SIGCONT)
            client.connection.close()
            self.by_worker[who] = reached(self.served, who)


def reached(served, who: str) -> Client:
    """Return a client whose connection the worker serves. The client connects while the coordinator accepts
    no connections.
    """
    served.process.send_signal(signal.SIGSTOP)
    client = Client(served, who)
    client.connection.connect()
    time.sleep(0.2)
    served.process.send_signal(signal.SIGCONT)
    return client


@pytest.fixture
def scene(serve, fake_origin, tmp_path):
    def start(*, names: str = "account", ttl: str = "1 min", own: str = "") -> Scene:
        fake_origin.objects = {f"/data/{key}": BODY for key in ("k", "other")}
        for name, secret in SECRETS.items():
            (tmp_path / name).write_text(secret)
        (tmp_path / "aws").write_text("[default]\naws_access_key_id = FIRST\naws_secret_access_key = x\n")
        config = tmp_path / "config.toml"
        config.write_text(configuration(tmp_path, names=names, ttl=ttl, own=own))
        served = serve(config, origin__endpoint=fake_origin.url, s3__workers="2")
        wait_for_workers(served)
        found = Scene(served, fake_origin, {who: reached(served, who) for who in SECRETS})
        scenes.append(found)
        return found

    scenes: list[Scene] = []
    yield start
    for one in scenes:
        for client in one.by_worker.values():
            client.connection.close()


def configuration(directory: Path, *, names: str, ttl: str, own: str) -> str:
    return f"""
        [origin]
        bucket_names = "{names}"
        [origin.credentials]
        file = "{directory}/aws"
        [auth]
        anonymous = false
        verdict_ttl = "{ttl}"
        [[auth.clients]]
        access_key = "shared"
        secret_file = "{directory}/shared"
        [[auth.clients]]
        access_key = "own"
        secret_file = "{directory}/own"
        {own}
        upstream = {{ access_key = "OWN", secret_file = "{directory}/own" }}
    """


NAMES = [("account", ""), ("account", 'namespace = "shared"'), ("global", "")]


@pytest.mark.parametrize(("names", "own"), NAMES)
def test_what_the_own_upstream_refuses_is_refused_by_every_process(scene, names, own):
    there = scene(names=names, own=own, ttl="1 s")
    for _ in range(2):
        assert {status for status, _ in there.everywhere("own") | there.everywhere("shared")} == {200}
        there.origin.denied = {"OWN"}
        time.sleep(1.1)
        assert {status for status, _ in there.everywhere("own")} == {403}
        assert {status for status, _ in there.everywhere("shared")} == {200}
        there.origin.denied = {"FIRST"}
        assert {status for status, _ in there.everywhere("own")} == {200}
        time.sleep(1.1)
        assert {status for status, _ in there.everywhere("own")} == {200}
        assert {status for status, _ in there.everywhere("shared")} == {403}
        there.origin.denied = set()


@pytest.mark.parametrize(("names", "own"), NAMES)
def test_what_one_client_read_answers_no_other_that_the_origin_refuses(scene, names, own):
    there = scene(names=names, own=own)
    there.origin.denied = {"FIRST"}
    assert {status for status, _ in there.everywhere("own")} == {200}
    assert {status for status, _ in there.everywhere("shared")} == {403}
    there.origin.denied = {"OWN"}
    assert {status for status, _ in there.everywhere("shared", "other")} == {200}
    assert {status for status, _ in there.everywhere("own", "other")} == {403}


def test_a_worker_answers_whom_the_proxys_credentials_let_read_and_asks_for_the_others(scene):
    there = scene()
    assert {status for status, _ in there.everywhere("own") | there.everywhere("shared")} == {200}
    assert there.alone("shared") == (200, "ram")
    assert there.alone("own") is None
    assert there.by_worker["own"].ask() == (200, "ram")


def test_a_verdict_that_has_lapsed_is_asked_for_again(scene):
    there = scene(ttl="2 s")
    assert {status for status, _ in there.everywhere("shared")} == {200}
    assert there.alone("shared") == (200, "ram")
    time.sleep(2.1)
    assert there.alone("shared") is None
    before = len(there.origin.asked)
    assert there.by_worker["shared"].ask() == (200, "ram")
    assert [signer_of(fields) for _, _, fields in there.origin.asked[before:]][-1:] == ["FIRST"]


def test_a_right_that_a_reload_brings_or_takes_counts_in_every_process(scene, tmp_path):
    there = scene(names="global")
    there.origin.denied = {"OWN"}
    text = (tmp_path / "config.toml").read_text()
    shared = text[: text.index("upstream =")] + 'upstream = "shared"\n'

    def reload(configured: str) -> None:
        (tmp_path / "config.toml").write_text(configured)
        before = there.served.log.read_text().count("configuration reloaded")
        there.served.process.send_signal(signal.SIGHUP)
        wait_for(lambda: there.served.log.read_text().count("configuration reloaded") > before)

    for _ in range(2):
        reload(shared)
        assert {status for status, _ in there.everywhere("own")} == {200}
        assert there.alone("own") == (200, "ram")
        reload(text)
        assert {status for status, _ in there.everywhere("own")} == {403}
        assert {status for status, _ in there.everywhere("shared")} == {200}


def test_a_write_to_the_buckets_policy_forgets_verdicts_in_every_process(scene):
    there = scene(names="global")
    there.origin.objects["/data"] = b"<Policy/>"
    for _ in range(2):
        there.origin.denied = set()
        assert {status for status, _ in there.everywhere("shared") | there.everywhere("own")} == {200}
        client = there.by_worker["shared"]
        path = "/data"
        signed = sign_request(
            method="PUT", raw_path=path, raw_query="policy=", headers=[("host", client.host)],
            payload_hash=EMPTY_SHA256, credentials=Credentials("shared", SECRETS["shared"]),
            region="us-east-1", now_s=time.time(),
        )  # fmt: skip
        with closing(http.client.HTTPConnection(client.host, timeout=20)) as writing:
            writing.request("PUT", path + "?policy", headers=dict(signed) | {"Content-Length": "0"})
            assert writing.getresponse().status == 200
        there.origin.denied = {"FIRST"}
        # The check made for the other client makes the page fresh again. It grants nothing to this client.
        assert {status for status, _ in there.everywhere("own")} == {200}
        assert {status for status, _ in there.everywhere("shared")} == {403}
