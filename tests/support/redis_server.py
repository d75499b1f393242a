"""A Redis or Valkey server for tests, on a free port of loopback, without persistence."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time

import pytest

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
MISSING = "needs redis-server or valkey-server (Debian: apt-get install redis-server)"
needs_redis = pytest.mark.skipif(PROGRAM is None, reason=MISSING)


class RedisServer:
    """One server. It can be started and killed again and again, and keeps its port.

    ``options``: further options of the program.
    """

    def __init__(self, folder, *options):
        self._folder = folder
        self._options = options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process = None

    def start(self):
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(
            [PROGRAM, *options, "--dir", str(self._folder), *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.command("PING") == b"+PONG\r\n":
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{PROGRAM} does not start on port {self.port}")

    def command(self, *words):
        """Send a command, and return up to 4,096 bytes of the raw answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return connection.recv(4096)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop_process(self):
        self.process.send_signal(signal.SIGSTOP)

    def continue_process(self):
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis_server(folder, *options):
    """Run a server with these further options. The test is skipped, with the reason, where none
    is installed.
    """
    if PROGRAM is None:
        pytest.skip(MISSING)
    server = RedisServer(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
