"""The checks that are made with every client on every route. A check raises if something is wrong. The
docstring of a check is a row of the table in docs/clients.md.
"""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.routes import Route

from .client import Client, ClientFailed
from .corpus import Body, digest, write_body


class NotOffered(Exception):
    """The client has no such operation."""


@dataclass
class Session:
    """One client on one route, with a bucket of its own. ``wrong`` makes the same client with a wrong secret.
    ``truth`` is a boto3 client that reads and writes the S3 server directly, without the proxy.
    """

    client: Client
    wrong: Callable[[], Client]
    route: Route
    bucket: str
    bodies: list[Body]
    scratch: Path
    truth: Any

    def need(self, operation: str) -> None:
        if operation not in self.client.offers:
            raise NotOffered(operation)

    def stored(self, key: str) -> bytes:
        body: bytes = self.truth.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body

    def seed(self, body: Body) -> None:
        """Write an object directly to the S3 server, past the client and the proxy."""
        self.truth.put_object(Bucket=self.bucket, Key=body.key, Body=body.path.read_bytes())
        self.route.forget(self.bucket)

    def fresh(self, name: str) -> Path:
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        return path


def upload(session: Session) -> None:
    """every size written and found at the gateway as it was"""
    for body in session.bodies:
        session.client.call("put", path=str(body.path), key=body.key)
        at_gateway = session.fresh("stored")
        at_gateway.write_bytes(session.stored(body.key))
        assert digest(at_gateway) == body.sha256, f"{body.key} is not what was sent"


def download(session: Session) -> None:
    """every size read cold, then warm; through a proxy, the warm read takes nothing from the origin"""
    for body in session.bodies:
        session.seed(body)
    for turn in ("cold", "warm"):
        before = session.route.origin_bytes() if session.route.proxied else 0
        for body in session.bodies:
            path = session.fresh("down")
            session.client.call("get", key=body.key, path=str(path))
            assert path.stat().st_size == body.size_bytes, f"{turn} {body.key}: {path.stat().st_size} bytes"
            assert digest(path) == body.sha256, f"{turn} {body.key} is not what is stored"
        if session.route.proxied and turn == "warm":
            # Some clients list before they read, and the origin answers every listing.
            read = session.route.origin_bytes() - before
            assert read < 1 << 20, f"{read} bytes came from the origin for a warm read"


def part(session: Session) -> None:
    """ranges: at the start, across pages, one byte, the end; cold and warm"""
    session.need("part")
    body = next(body for body in session.bodies if body.size_bytes == 20 << 20)
    session.seed(body)
    whole = body.path.read_bytes()
    spans = ((0, 10), (4_194_300, 4_194_310), (777, 9_000_000), (20_971_519, 20_971_520), (5 << 20, 20 << 20))
    for _ in ("cold", "warm"):
        for start, stop in spans:
            path = session.fresh("part")
            session.client.call("part", key=body.key, start=start, stop=stop, path=str(path))
            assert path.read_bytes() == whole[start:stop], (start, stop)


def resume(session: Session) -> None:
    """a download that stopped half-way, continued"""
    session.need("resume")
    body = next(body for body in session.bodies if body.size_bytes == 20 << 20)
    session.seed(body)
    for _ in ("cold", "warm"):
        path = session.fresh("half")
        path.write_bytes(body.path.read_bytes()[: 9 << 20])
        session.client.call("resume", key=body.key, path=str(path))
        assert digest(path) == body.sha256


def listing(session: Session) -> None:
    """keys with blanks, umlauts and markup listed, as they are after writes and deletes"""
    names = ["a b", "a&b", "a+b", "comma,semicolon;", "deep/er/x", "plain", "ü", "~tilde", "ä'quote=1"]
    expected = sorted((f"list/{name}", at) for at, name in enumerate(names))
    for key, size in expected:
        path = session.fresh("listed")
        path.write_bytes(b"x" * size)
        session.client.call("put", path=str(path), key=key)
    assert sorted(map(tuple, session.client.call("listing", prefix="list/"))) == expected
    session.client.call("delete", keys=[key for key, _ in expected[:3]])
    assert sorted(map(tuple, session.client.call("listing", prefix="list/"))) == expected[3:]
    left = session.truth.list_objects_v2(Bucket=session.bucket, Prefix="list/")["Contents"]
    # pyarrow keeps a directory alive by an empty object.
    assert sorted(entry["Key"] for entry in left if entry["Key"] != "list/") == [
        key for key, _ in expected[3:]
    ]


def overwrite(session: Session) -> None:
    """a warm object replaced, made longer, made shorter, deleted: the next read knows"""
    key = "again/and again"
    for turn, size in enumerate((50_000, 6 << 20, 9 << 20, 1, 0)):
        body = write_body(session.fresh("version"), size, key, f"version {turn}")
        session.client.call("put", path=str(body.path), key=key)
        for _ in ("cold", "warm"):
            path = session.fresh("down")
            session.client.call("get", key=key, path=str(path))
            assert digest(path) == body.sha256, f"version {turn} is not read back"
    session.client.call("delete", keys=[key])
    assert not session.truth.list_objects_v2(Bucket=session.bucket, Prefix=key).get("Contents"), "not deleted"
    try:
        session.client.call("get", key=key, path=str(session.fresh("down")))
    except ClientFailed:
        return
    raise AssertionError("a deleted object was read")


def sync(session: Session) -> None:
    """a directory synced up, changed, synced up again, synced down over half of it"""
    session.need("sync_up")
    source, copy = session.fresh("source"), session.fresh("copy")
    for at, size in enumerate((0, 10, 5_000_000, 17_000_000)):
        write_body(source / f"folder {at % 2}" / f"file ü {at}", size, "", f"sync {at}")
    session.client.call("sync_up", directory=str(source), prefix="sync/")
    changed = source / "folder 0" / "file ü 2"
    write_body(changed, 6_000_000, "", "changed")
    os.utime(changed, (2_000_000_000, 2_000_000_000))
    session.client.call("sync_up", directory=str(source), prefix="sync/")
    shutil.copytree(source / "folder 1", copy / "folder 1")
    session.client.call("sync_down", prefix="sync/", directory=str(copy))
    trees = [
        {str(path.relative_to(top)): digest(path) for path in top.rglob("*") if path.is_file()}
        for top in (source, copy)
    ]
    assert trees[0] == trees[1]


def missing_key(session: Session) -> str:
    """what is said of a key that does not exist"""
    return _error_of(session, session.client, "no such key")


def wrong_secret(session: Session) -> str:
    """what is said to somebody with a wrong secret, also of an object in the cache"""
    body = next(body for body in session.bodies if body.size_bytes == 5_000)
    session.seed(body)
    session.client.call("get", key=body.key, path=str(session.fresh("down")))
    wrong = session.wrong()
    try:
        return _error_of(session, wrong, body.key)
    finally:
        wrong.close()


def _error_of(session: Session, client: Client, key: str) -> str:
    path = session.fresh("down")
    try:
        client.call("get", key=key, path=str(path))
    except ClientFailed as error:
        return essence(comparable(str(error), session))
    raise AssertionError(f"no error; the file has {path.stat().st_size if path.exists() else 'no'} bytes")


def comparable(text: str, session: Session) -> str:
    """Return an error text without the parts that differ between any two runs."""
    text = text.replace(session.route.endpoint, "ENDPOINT").replace(session.route.host, "ENDPOINT")
    text = text.replace(session.bucket, "BUCKET").replace(str(session.scratch), "SCRATCH")
    text = re.sub(r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d\S*", "TIME", text)
    text = re.sub(r"(?i)((request|host) ?id[:>]\s*)[^\s,;<>)]+", r"\1ID", text)
    text = re.sub(r"\b(tx)?[0-9a-f]{12,}[0-9a-f.-]*(-default)*\b", "ID", text)
    return re.sub(r"\s+", " ", text).strip()


def essence(text: str) -> str:
    """Return the meaning of a client's error: its class or exit status, and the codes that it names. Messages
    differ with and without the proxy (docs/semantics.md). A client may show the message if there is one, and
    the code otherwise.
    """
    codes = _CODES.findall(text.replace(_SIGNATURE_MESSAGE, "SignatureDoesNotMatch"))
    return " ".join(dict.fromkeys([text.partition(":")[0], *codes]))


_SIGNATURE_MESSAGE = "The request signature we calculated does not match the signature you provided"
_CODES = re.compile(
    r"NoSuch\w+|SignatureDoesNotMatch|MissingContentLength|InvalidRange|AccessDenied|Forbidden|Not Found"
    r"|(?<![\w.])[45]\d\d(?![\w.])|\"ETag\" not found|nothing was copied|does not exist"
)

CHECKS: dict[str, Callable[[Session], str | None]] = {
    check.__name__: check
    for check in (upload, download, part, resume, listing, overwrite, sync, missing_key, wrong_secret)
}
