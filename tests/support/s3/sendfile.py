"""A proxy that sends bodies from the files of its RAM tier."""

import os

from tests.support.s3.lane import Watched, request, talk

SIZE = 1_000_000
RANGE = "bytes=5000-904999"


async def sendfile_proxy(make_proxy, folder, *, compiled):
    """Make a proxy with its RAM tier in ``folder``. Its request cache knows two objects and a range."""
    proxy = await make_proxy(lane=Watched, compiled=compiled, page_size=1 << 20, ram=folder / "ram")
    proxy.bodies = {key: os.urandom(size) for key, size in (("k", SIZE), ("small", 20_000))}
    for key, body in proxy.bodies.items():
        proxy.origin.put("b", key, body)
        for _ in range(3):
            await talk(proxy.port, request(f"/b/{key}", close=False), count=1)
    await talk(proxy.port, request("/b/k", f"Range: {RANGE}", close=False), count=1)
    return proxy
