"""Batch and locate calls to a real proxy: the example of the documentation, the Unix socket, and evictions
during a copy.
"""

import http.client
import json
import os
import socket
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.support.documents import block

SIZE = 50_000


def post(proxy, path: str, call: dict) -> bytes:
    connection = http.client.HTTPConnection(proxy.control.removeprefix("http://"))
    connection.request("POST", path, json.dumps(call), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return body


@pytest.fixture
def objects(bucket_directory) -> dict[str, bytes]:
    bodies = {f"{number:03d}": os.urandom(SIZE) for number in range(60)}
    for key, body in bodies.items():
        (bucket_directory / "data" / key).write_bytes(body)
    return bodies


def test_the_example_of_the_document(serve, bucket_directory):
    image = bucket_directory / "train" / "img" / "1.txt"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"bytes of 1")
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory))
    names: dict = {}
    address = proxy.control.removeprefix("http://")
    exec(block("read_batch").replace("127.0.0.1:9001", address), names)
    assert names["found"] == {0: b"bytes of 1"}
    read_batch = names["read_batch"]
    assert [frame[:2] for frame in read_batch(address, {"items": names["items"]})] == [(0, 200), (1, 404)]
    with pytest.raises(OSError, match="dataset 'none' is not registered"):
        list(read_batch(address, {"dataset": "none", "ids": [0]}))


def test_located_bytes_are_right_or_known_to_be_wrong_while_pages_leave(serve, bucket_directory, objects):
    """Located bytes are right, or the reader sees that they are not, although pages are evicted meanwhile.
    The cache has room for a third of the objects. Every round of reads evicts the pages that the previous
    round located.
    """
    proxy = serve(
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__ram__capacity="1 MiB",
        policy__name="lru",
    )
    names: dict = {"np": np}
    exec(block("np.dtype"), names)
    keys, right, wrong = sorted(objects), 0, 0
    for turn in range(6):
        asked = keys[turn * 10 : turn * 10 + 10]
        items = [{"bucket": "data", "key": key} for key in asked]
        post(proxy, "/v1/batch", {"items": items})
        data = post(proxy, "/v1/locate", {"items": items})
        json_bytes, count = struct.unpack_from("<II", data)
        files = json.loads(data[8 : 8 + json_bytes])["files"]
        for number, record in enumerate(np.frombuffer(data, names["record"], count, 8 + json_bytes)):
            if record["status"] != 200:
                continue
            if number == 5:  # Read the other objects, to evict the rest of the located pages.
                others = [{"bucket": "data", "key": key} for key in keys if key not in asked]
                post(proxy, "/v1/batch", {"items": others})
            with Path(files[record["file"]]).open("rb", buffering=0) as file:
                body = os.pread(file.fileno(), int(record["length"]), int(record["offset"]))
                intact = (
                    os.pread(file.fileno(), 64, int(record["header_offset"])) == record["header"].tobytes()
                )
            right, wrong = right + intact, wrong + (not intact)
            if intact:
                assert body == objects[asked[record["index"]]]
    assert right > 10
    assert wrong > 10


def test_the_socket_serves_batches_and_a_second_proxy_does_not_take_it(
    serve, bucket_directory, objects, tmp_path
):
    path = tmp_path.parent / "c.sock"
    settings = {"origin__kind": "file", "origin__path": str(bucket_directory), "control__socket": str(path)}
    proxy = serve(**settings)
    assert proxy.get("/v1/info")["socket"] == str(path)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        body = json.dumps({"items": [{"bucket": "data", "key": "000"}]}).encode()
        head = "POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close"
        connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while piece := connection.recv(1 << 20):
            answer += piece
    assert objects["000"] in answer
    with pytest.raises(AssertionError, match=f"control.socket: another process listens on {path}"):
        serve(**settings)
    assert proxy.get("/v1/info")["socket"] == str(path)
    proxy.stop(9)
    proxy.start()  # The new process replaces the socket that the killed process left.
    assert proxy.stop() == 0
    assert not path.exists()
