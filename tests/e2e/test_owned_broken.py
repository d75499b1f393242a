"""Two proxies with page ownership, and a network between them that loses resets. The owner breaks off a body.
The client of the asked proxy then sees an aborted connection at once.
"""

import http.client

import pytest

from shadeproxy_bench.ports import free_port
from tests.support.lossy_link import FIN, lossy_link

from .odd_origin import KINDS, odd_origin
from .owned import owner_of, settled

LIMIT_S = 10
"""A limit in seconds. It is far below the time without a byte after which a proxy gives a body up."""


@pytest.mark.parametrize("kind", ["cut-in-the-body", "chunk-cut"])
def test_a_client_sees_at_once_that_the_owner_breaks_off(join, kind):
    port = free_port()
    with odd_origin() as origin, lossy_link(port) as link:
        usual = {
            "origin__endpoint": origin.url,
            "origin__credentials": "anonymous",
            "cache__page_size": "64 KiB",
            "origin__retry__attempts": "1",
        }
        asked = join(**usual)
        owner = join(
            cluster__listen=f"127.0.0.1:{port}", cluster__advertise=f"127.0.0.1:{link.port}", **usual
        )
        settled(asked, owner)
        keys = [f"{kind}.{number}" for number in range(40)]
        owned = [key for key in keys if owner_of(key, [asked, owner]) is owner]
        client = http.client.HTTPConnection(asked.s3.removeprefix("http://"), timeout=LIMIT_S)
        body = KINDS[kind].bodies[0]
        for key in owned[:4]:
            client.request("GET", f"/data/{key}")
            with pytest.raises(ConnectionResetError):
                assert body.startswith(client.getresponse().read())
            client.close()
        assert link.ends == [FIN] * 4
        assert asked.stats()["tiers"]["ram"]["pages"] == 0
