"""moto as the origin, and two proxies in front of it, which all tests of a module share."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from shadeproxy.core.sigv4 import Credentials

from .sides import FORMS, Sides, make_sides


@pytest.fixture(scope="module", params=FORMS)
def sides(
    request: pytest.FixtureRequest, serve_for_module: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sides]:
    # Without this, the log of moto would have a traceback for each date that moto cannot parse.
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with ExitStack() as stack:
        server.start()
        stack.callback(server.stop)
        host, port = server.get_host_and_port()
        key = Credentials("testing", "testing")
        directory = tmp_path_factory.mktemp("differential")
        yield stack.enter_context(
            make_sides(serve_for_module, f"http://{host}:{port}", key, directory, request.param)
        )
