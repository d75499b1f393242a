"""Network namespaces lose the packets between the two places of a cut, in one direction or in both. Packets
of other places are not lost.
"""

import json
import subprocess
import sys

import pytest

from shadeproxy_bench.reliability.cluster import namespaces
from shadeproxy_bench.reliability.cluster.network import Cut

_WHOLE = [True, True]
_PROGRAM = """
import asyncio, json, socket
from shadeproxy_bench.reliability.cluster.namespaces import Namespaces, enter, entered
from shadeproxy_bench.reliability.cluster.network import Cut

if not entered():
    enter()
places = ["a", "b", "c"]
network = Namespaces(places, dict)

async def main():
    await network.open()
    made = {}
    for place in places:
        network._enter(network._files[place])
        made[place] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        network._enter(network._own)
        made[place].bind(("0.0.0.0", 9))
        made[place].settimeout(0.2)

    def arrives(one, other):
        try:
            made[one].sendto(b"x", (network._host(other), 9))
            return made[other].recv(1) == b"x"
        except TimeoutError:
            return False
        except OSError:
            return None

    def look():
        return [[arrives(*ends), arrives(*reversed(ends))] for ends in (("a", "b"), ("a", "c"))]

    found = {"whole": look()}
    for how in Cut:
        await network.cut("a", "b", how)
        found[how.name] = look()
        await network.heal("a", "b")
        found["whole after " + how.name] = look()
    try:
        await network.connect(network.site("a").s3_port)
    except ConnectionRefusedError:
        found["connect"] = "refused"
    server = network._socket_at("a")
    server.bind(("127.0.0.1", network.site("a").s3_port))
    server.listen()
    _, out = await network.connect(network.site("a").s3_port)
    out.write(b"to a")
    found["connected"] = server.accept()[0].recv(4).decode()
    out.close()
    for one in (server, *made.values()):
        one.close()
    await network.aclose()
    await network.open()  # for the next seed
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def found():
    if why := namespaces.refusal():
        pytest.skip(f"network namespaces are not permitted: {why}")
    command = [sys.executable, "-c", _PROGRAM]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.parametrize(
    ("how", "arrives"),
    [
        (Cut.SILENT, [False, False]),
        (Cut.REQUESTS, [False, True]),
        (Cut.ANSWERS, [True, False]),
        (Cut.REFUSED, [None, None]),
    ],
)
def test_a_cut_loses_packets_between_two_places_until_it_is_healed(found, how, arrives):
    """A cut loses packets between two places until it is healed. ``arrives`` is what the receiver gets; None
    means that the sender gets an error.
    """
    assert found["whole"] == [_WHOLE, _WHOLE]
    assert found[how.name] == [arrives, _WHOLE]
    assert found[f"whole after {how.name}"] == [_WHOLE, _WHOLE]


def test_clients_of_a_node_are_beside_it(found):
    assert found["connect"] == "refused"
    assert found["connected"] == "to a"


def test_a_machine_that_permits_none_says_why(monkeypatch):
    monkeypatch.setattr(namespaces, "_inside", lambda *_: ["sh", "-c", "echo not permitted >&2; exit 1"])
    assert namespaces.refusal() == "not permitted"
    monkeypatch.setattr(namespaces, "_inside", lambda *_: ["no-such-program-here"])
    assert "no-such-program-here" in namespaces.refusal()
