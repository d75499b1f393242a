"""Real clients on several routes. An operation that works on the gateway itself works through the proxy too,
plain and over TLS. An operation that fails at the gateway fails with the same error. In a separate run the
proxies own no object, and relay to the owner.

On each route one client plays the whole life of a bucket. The direct route to the gateway comes first. If its
outcome is not "ok", the fault lies with the gateway or the client, and docs/clients.md shows it. On the route
"file" the proxy serves a directory without a gateway, so this route shows which of the two has the fault.
"""

import os
import shutil
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.routes import Route

from .checks import CHECKS, NotOffered, Session, comparable, essence
from .client import Absent, Client, ClientFailed, Library
from .programs import AwsCli, Program, Rclone, S3cmd, S5cmd
from .report import FAILS, NOT_OFFERED, OK, PLAYED, SAYS

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

LIBRARIES = {
    "boto3": "use_boto3",
    "s3fs": "use_s3fs",
    "pyarrow": "use_pyarrow",
    "obstore": "use_obstore",
    "tensorstore": "use_tensorstore",
    "s3torchconnectorclient": "use_s3torchconnector",
}
PROGRAMS: dict[str, type[Program]] = {"awscli": AwsCli, "s5cmd": S5cmd, "rclone": Rclone, "s3cmd": S3cmd}
# Programs whose dependencies do not fit the others have environments of their own, which the Makefile names.
PLACES = [
    *(Path(place) for place in os.environ.get("SHADEPROXY_CLIENTS_PATH", "").split(":") if place),
    Path(sys.executable).parent,
]


def make_client(name: str, route: Route, bucket: str, home: Path) -> Client:
    if name in LIBRARIES:
        return Library(LIBRARIES[name], route, bucket, home)
    return PROGRAMS[name](route, bucket, home, PLACES)


def outcome_of(name: str, session: Session) -> tuple[str, str]:
    """Return the outcome in a few words that can be compared. After a failure, also return the client's own
    words.
    """
    try:
        if name in CHECKS:
            said = CHECKS[name](session)
        else:
            folder = session.fresh(name)
            folder.mkdir()
            said = session.client.call(name, scratch=str(folder))
    except NotOffered:
        return NOT_OFFERED, ""
    except ClientFailed as error:
        text = comparable(str(error), session)
        return FAILS + (text if text.startswith("AssertionError") else essence(text)), text
    except AssertionError as error:
        return comparable(f"wrong: {error}", session).partition(" assert ")[0], str(error)
    return (OK if said is None else f"{SAYS}{said}"), ""


def agree(direct: str, proxied: str) -> bool:
    """Return whether both outcomes show the same failure. An error through the proxy may name more than the
    gateway's. The gateway's errors have no message, and some clients show only the message.
    """
    for kind in (SAYS, FAILS):
        if direct.startswith(kind) and proxied.startswith(kind):
            first, *named = direct.removeprefix(kind).split()
            now, *also_named = proxied.removeprefix(kind).split()
            return first == now and set(named) <= set(also_named)
    return direct == proxied


def empty(truth, bucket: str) -> None:
    for page in truth.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for entry in page.get("Contents", ()):
            truth.delete_object(Bucket=bucket, Key=entry["Key"])


@pytest.mark.parametrize("route_name", PLAYED)
@pytest.mark.parametrize("name", [*LIBRARIES, *PROGRAMS])
def test_a_client(name, route_name, stage, tmp_path):
    route, record = stage.routes[route_name], stage.record
    truth = route.truth()
    bucket = f"{route_name}-{uuid.uuid4().hex[:8]}"
    truth.create_bucket(Bucket=bucket)
    try:
        client = make_client(name, route, bucket, tmp_path)
    except Absent as absent:
        record.absent[name] = str(absent)
        pytest.skip(f"{name} is not installed: {absent}")
    record.versions[name] = client.version

    def wrong() -> Client:
        return make_client(name, route.with_wrong_secret(), bucket, tmp_path)

    session = Session(client, wrong, route, bucket, stage.bodies, tmp_path / "scratch", truth)
    session.scratch.mkdir()
    differing = []
    with closing(client):
        for check in [*CHECKS, *(offer for offer in client.offers if offer.startswith("try_"))]:
            outcome, text = outcome_of(check, session)
            record.note(name, check, client.offers.get(check, ""), route_name, outcome)
            direct = record.outcome(name, check, "direct")
            if route.proxied and outcome != OK and not agree(direct, outcome):
                differing.append(f"{check}:\n  direct:  {direct}\n  {route_name}: {outcome}\n  {text}")
    shutil.rmtree(session.scratch)
    empty(truth, bucket)
    assert not differing, "\n".join(differing)
