"""Waits for the end of a purge. A purge that takes longer than a second goes on as an operation."""

import time
from collections.abc import Callable

import msgspec

_INTERVAL_S = 0.1


def end_of_purge(status: int, answer: bytes, get: Callable[[str], bytes]) -> int:
    """Wait for the end of a purge, and return a status for it: 200 if everything was dropped, 0 if the proxy
    no longer answers. ``status``, ``answer``: the answer to the call of the purge. ``get`` returns the answer
    of a path, b"" if there is none.
    """
    while status == 202:
        if not answer:
            return 0
        operation = msgspec.json.decode(answer)
        if "state" not in operation:
            return 0  # The proxy was restarted: this process did not begin the purge.
        if operation["state"] != "running":
            return 200 if operation["state"] == "done" else 503
        time.sleep(_INTERVAL_S)
        answer = get(f"/v1/operations/{operation['id']}")
    return status
