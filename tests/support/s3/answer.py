"""Helpers to read answers of a listener, and to wait for conditions."""

import asyncio


def split(answer):
    """Return (status, lower-case fields, body) of one answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
    fields = {}
    for line in lines:
        name, _, value = line.partition(": ")
        assert name.lower() not in fields, f"{name} sent twice"
        fields[name.lower()] = value
    return int(status.split()[1]), fields, body


async def until(true):
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)
