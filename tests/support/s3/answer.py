"""Helpers that read the answers of a listener, and that wait for conditions."""

import asyncio


def split(answer):
    """Return (status, fields, body) of one answer. The names of the fields are in lower case."""
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
