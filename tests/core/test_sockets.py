"""``reset_on_close``: the other end sees a reset, and receives none of the bytes that still waited."""

import socket

import pytest

from shadeproxy.core.sockets import reset_on_close


def test_the_other_end_sees_a_reset_instead_of_an_end():
    with socket.create_server(("127.0.0.1", 0)) as server:
        for resets in (False, True):
            connection = socket.create_connection(server.getsockname())
            other, _ = server.accept()
            with other:
                if resets:
                    reset_on_close(connection)
                connection.close()
                if resets:
                    with pytest.raises(ConnectionResetError):
                        other.recv(1)
                else:
                    assert other.recv(1) == b""
