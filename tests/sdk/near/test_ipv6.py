"""A proxy at an IPv6 address. In a URL and in the header field Host, the address stands in brackets (RFC 3986
section 3.2.2).
"""

import socket
import threading

import pytest

import shadeproxy_sdk as shade

IDS = list(range(40))


@pytest.fixture
def address(near):
    """Return host and port of an IPv6 address at which the proxy listens too."""
    kind = type(near.proxy.server)
    try:
        server = type("Server6", (kind,), {"address_family": socket.AF_INET6})(("::1", 0), near.proxy)
    except OSError:
        pytest.skip("needs IPv6 on the loopback interface")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"[::1]:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("way", ["locate", "batch"])
def test_calls_name_the_host_in_brackets(make_client, near, address, way):
    if way == "locate":
        near.keep_all()
    client = make_client(f"http://{address}")
    assert client.read_many(client.manifest(bucket="train"), IDS) == near.bodies
    assert {fields["host"] for fields in near.headers} == {address}
    assert not near.proxy.reads


def test_all_addresses_mean_the_control_host(make_client, near, address):
    near.proxy.offers["s3_endpoint"] = f"http://[::]:{address.rpartition(':')[2]}"
    entry = shade.Entry("train", "1/001")
    assert make_client(f"http://{address}").read(entry) == near.proxy.objects["train", "1/001"]
    assert near.proxy.reads[-1][2]["Host"] == address
