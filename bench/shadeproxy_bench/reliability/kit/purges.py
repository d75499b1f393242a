"""Waiting for a purge: one that takes longer than a second goes on as an operation."""

import time
from collections.abc import Callable

import msgspec

_INTERVAL_S = 0.1


def end_of_purge(status: int, answer: bytes, get: Callable[[str], bytes]) -> int:
    """Return the status that says how a purge ended, from that of its call: 200 if everything was dropped, 0
    if the proxy no longer answers. ``get`` returns the answer of a path, b"" if there is none.
    """
    while status == 202:
        if not answer:
            return 0
        operation = msgspec.json.decode(answer)
        if "state" not in operation:
            return 0  # Another process answers than the one that began it.
        if operation["state"] != "running":
            return 200 if operation["state"] == "done" else 503
        time.sleep(_INTERVAL_S)
        answer = get(f"/v1/operations/{operation['id']}")
    return status
