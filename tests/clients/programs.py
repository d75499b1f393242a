"""Command-line programs, each with only those flags that a user would give it."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tests.support.routes import Route

from .client import TIMEOUT_S, Absent, ClientFailed


class Program:
    """Runs one program. A subclass names the program and its commands for the operations."""

    executable: ClassVar[str]
    ask_version: ClassVar[list[str]]

    def __init__(self, route: Route, bucket: str, home: Path, places: list[Path]) -> None:
        found = shutil.which(self.executable, path=":".join(map(str, places)) + ":/usr/local/bin:/usr/bin")
        if found is None:
            raise Absent(f"no program {self.executable}")
        self._found = found
        self.route, self.bucket, self.home = route, bucket, home
        self.environment = route.environment(home)
        self.prepare()
        self.version = self.short_version(self.run(*self.ask_version))
        self.offers = {
            name: value.__doc__ or ""
            for name in (
                "put",
                "get",
                "part",
                "resume",
                "listing",
                "delete",
                "sync_up",
                "sync_down",
                *dir(self),
            )
            if (name in _OPERATIONS or name.startswith("try_")) and (value := getattr(self, name, None))
        }

    def prepare(self) -> None:
        """Write the program's configuration, and add to its environment."""

    def short_version(self, said: str) -> str:
        return said.splitlines()[0]

    def run(self, *arguments: str, output: Path | None = None) -> str:
        """Run the program, and return its output. ``output`` is a file for the output. Raises ClientFailed
        with the program's error text.
        """
        with (output or Path("/dev/null")).open("ab") as file:
            done = subprocess.run(
                [self._found, *arguments], stdout=file if output else subprocess.PIPE, stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL, check=False, timeout=TIMEOUT_S, env=self.environment,
            )  # fmt: skip
        if done.returncode != 0:
            raise ClientFailed(
                f"exit {done.returncode}: {done.stderr.decode()}{(done.stdout or b'').decode()}"
            )
        return (done.stdout or b"").decode()

    def uri(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def call(self, operation: str, **arguments: Any) -> Any:
        called: Callable[..., Any] = getattr(self, operation)
        return called(**arguments)

    def close(self) -> None:
        """Do nothing, because no process runs between calls."""


_OPERATIONS = {"put", "get", "part", "resume", "listing", "delete", "sync_up", "sync_down"}


class AwsCli(Program):
    executable = "aws"
    ask_version: ClassVar = ["--version"]

    def short_version(self, said: str) -> str:
        return said.split(maxsplit=1)[0].replace("/", " ")

    def aws(self, *arguments: str) -> str:
        return self.run("--endpoint-url", self.route.endpoint, *arguments)

    def put(self, path: str, key: str) -> None:
        self.aws("s3", "cp", path, self.uri(key))

    def get(self, key: str, path: str) -> None:
        self.aws("s3", "cp", self.uri(key), path)

    def part(self, key: str, start: int, stop: int, path: str) -> None:
        named = ("--bucket", self.bucket, "--key", key)
        self.aws("s3api", "get-object", *named, "--range", f"bytes={start}-{stop - 1}", path)

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        lines = self.aws("s3", "ls", "--recursive", "--page-size", "3", self.uri(prefix)).splitlines()
        # The columns are date, time, size, and the key, which may contain spaces.
        columns = [line.split(maxsplit=3) for line in lines]
        return [(key, int(size)) for _, _, size, key in columns]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.aws("s3", "rm", self.uri(key))

    def sync_up(self, directory: str, prefix: str) -> None:
        self.aws("s3", "sync", directory, self.uri(prefix))

    def sync_down(self, prefix: str, directory: str) -> None:
        self.aws("s3", "sync", self.uri(prefix), directory)

    def try_streams(self, scratch: str) -> None:
        """s3 cp from and to a pipe, s3 mv, s3 rm --recursive, s3 ls of a bucket, s3 presign"""
        path = Path(scratch) / "up"
        path.write_bytes(b"piped" * 2_000_000)
        shell = [
            "bash", "-c",
            '"$0" s3 cp - "$2" < "$1" && "$0" s3 cp "$2" - | cmp - "$1"',
            self._found, str(path), self.uri("piped/a b"),
        ]  # fmt: skip
        environment = self.environment | {"AWS_ENDPOINT_URL": self.route.endpoint}
        done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.aws("s3", "mv", self.uri("piped/a b"), self.uri("piped/moved"))
        assert "moved" in self.aws("s3", "ls", self.uri("piped/"))
        url = self.aws("s3", "presign", self.uri("piped/moved")).strip()
        fetched = subprocess.run(
            ["curl", "-sS", "--fail", url], capture_output=True, check=True, env=self.environment
        )
        assert fetched.stdout == path.read_bytes()
        self.aws("s3", "rm", "--recursive", self.uri("piped/"))


class S5cmd(Program):
    executable = "s5cmd"
    ask_version: ClassVar = ["version"]

    def short_version(self, said: str) -> str:
        return "s5cmd " + said.strip().partition("-")[0]

    def s5(self, *arguments: str, output: Path | None = None) -> str:
        # By default s5cmd tries ten times with long pauses, so an error would take a minute.
        return self.run(
            "--retry-count", "2", "--endpoint-url", self.route.endpoint, *arguments, output=output
        )

    def put(self, path: str, key: str) -> None:
        self.s5("cp", path, self.uri(key))

    def get(self, key: str, path: str) -> None:
        self.s5("cp", self.uri(key), path)

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        lines = self.s5("--json", "ls", self.uri(prefix) + "*").splitlines()
        entries = [json.loads(line) for line in lines]
        return [(one["key"].partition(f"{self.bucket}/")[2], int(one.get("size", 0))) for one in entries]

    def delete(self, keys: list[str]) -> None:
        self.s5("rm", *(self.uri(key) for key in keys))

    def sync_up(self, directory: str, prefix: str) -> None:
        self.s5("sync", f"{directory}/", self.uri(prefix))

    def sync_down(self, prefix: str, directory: str) -> None:
        self.s5("sync", self.uri(prefix) + "*", f"{directory}/")

    def try_small_parts(self, scratch: str) -> None:
        """cp of 17 MB in parts of 5 MiB, ten at a time, up and down; cat, mv, head"""
        body, down = Path(scratch) / "up", Path(scratch) / "down"
        body.write_bytes(bytes(range(256)) * 68_000)
        self.s5("cp", "-p", "5", "-c", "10", str(body), self.uri("parts/plain"))
        self.s5("cp", "-p", "5", "-c", "10", self.uri("parts/plain"), str(down))
        assert down.read_bytes() == body.read_bytes()
        self.s5("mv", self.uri("parts/plain"), self.uri("parts/moved"))
        printed = Path(scratch) / "printed"
        self.s5("cat", self.uri("parts/moved"), output=printed)
        assert printed.read_bytes() == body.read_bytes()
        assert json.loads(self.s5("--json", "head", self.uri("parts/moved")))["size"] == 256 * 68_000

    def try_move_with_a_blank(self, scratch: str) -> None:
        """mv of a key with a blank in it"""
        path = Path(scratch) / "up"
        path.write_bytes(b"body")
        self.s5("cp", str(path), self.uri("move/a b"))
        self.s5("mv", self.uri("move/a b"), self.uri("move/c d"))
        assert [key for key, _ in self.listing("move/")] == ["move/c d"]


class Rclone(Program):
    executable = "rclone"
    ask_version: ClassVar = ["version"]

    def prepare(self) -> None:
        self.environment |= {
            "RCLONE_CONFIG": str(self.home / "rclone.conf"),
            "RCLONE_CONFIG_AT_TYPE": "s3",
            # The ETags of a directory's files are no MD5. With this provider rclone does not expect MD5.
            "RCLONE_CONFIG_AT_PROVIDER": "Other" if self.route.name == "file" else "Ceph",
            "RCLONE_CONFIG_AT_ENDPOINT": self.route.endpoint,
            "RCLONE_CONFIG_AT_ENV_AUTH": "true",
            # By default rclone would repeat an error for a minute.
            "RCLONE_RETRIES": "1",
            "RCLONE_LOW_LEVEL_RETRIES": "2",
        }
        (self.home / "rclone.conf").touch()

    def at(self, key: str) -> str:
        return f"at:{self.bucket}/{key}"

    def put(self, path: str, key: str) -> None:
        self.run("copyto", path, self.at(key))

    def get(self, key: str, path: str) -> None:
        self.run("copyto", self.at(key), path)
        if not Path(path).exists():
            raise ClientFailed("exit 0: nothing was copied")

    def part(self, key: str, start: int, stop: int, path: str) -> None:
        Path(path).unlink(missing_ok=True)
        span = ("--offset", str(start), "--count", str(stop - start))
        self.run("cat", *span, self.at(key), output=Path(path))

    def resume(self, key: str, path: str) -> None:
        self.run("cat", "--offset", str(Path(path).stat().st_size), self.at(key), output=Path(path))

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        entries = json.loads(self.run("lsjson", "-R", "--files-only", self.at(prefix)))
        return [(prefix + one["Path"], one["Size"]) for one in entries]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.run("deletefile", self.at(key))

    def sync_up(self, directory: str, prefix: str) -> None:
        self.run("sync", directory, self.at(prefix))

    def sync_down(self, prefix: str, directory: str) -> None:
        self.run("sync", self.at(prefix), directory)

    def try_check(self, scratch: str) -> None:
        """copy by eight transfers and four streams a file, check --download, move, purge"""
        folder = Path(scratch) / "files"
        folder.mkdir()
        for at, size in enumerate((0, 10, 6 << 20, 30 << 20)):
            (folder / f"a b {at}").write_bytes(bytes([at]) * size)
        self.run("copy", "--transfers", "8", "--s3-upload-cutoff", "10M", str(folder), self.at("checked"))
        self.run("check", "--download", str(folder), self.at("checked"))
        streams = ("--multi-thread-streams", "4", "--multi-thread-cutoff", "5M")
        self.run("copy", *streams, self.at("checked"), f"{folder}-2")
        for path in folder.iterdir():
            assert (Path(f"{folder}-2") / path.name).read_bytes() == path.read_bytes(), path.name
        self.run("moveto", self.at("checked/a b 2"), self.at("checked/moved"))
        self.run("purge", self.at("checked"))


class S3cmd(Program):
    executable = "s3cmd"
    ask_version: ClassVar = ["--version"]

    def short_version(self, said: str) -> str:
        return said.strip().replace(" version", "")

    def prepare(self) -> None:
        self._settings = self.home / "s3cfg"
        self._settings.write_text(
            f"[default]\naccess_key = {self.route.access_key}\nsecret_key = {self.route.secret_key}\n"
            f"host_base = {self.route.host}\nhost_bucket = {self.route.host}\n"
            f"use_https = {self.route.tls}\nca_certs_file = {self.route.ca_file}\n"
            "bucket_location = us-east-1\nprogress_meter = False\nmax_retries = 1\n"
        )

    def s3(self, *arguments: str) -> str:
        return self.run("-c", str(self._settings), *arguments)

    def put(self, path: str, key: str) -> None:
        self.s3("put", path, self.uri(key))

    def get(self, key: str, path: str) -> None:
        self.s3("get", "--force", self.uri(key), path)

    def resume(self, key: str, path: str) -> None:
        self.s3("get", "--continue", self.uri(key), path)

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        columns = [line.split(maxsplit=3) for line in self.s3("ls", "-r", self.uri(prefix)).splitlines()]
        return [(where.partition(f"s3://{self.bucket}/")[2], int(size)) for _, _, size, where in columns]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.s3("del", self.uri(key))

    def sync_up(self, directory: str, prefix: str) -> None:
        self.s3("sync", f"{directory}/", self.uri(prefix))

    def sync_down(self, prefix: str, directory: str) -> None:
        self.s3("sync", self.uri(prefix), f"{directory}/")

    def try_signature_v2(self, scratch: str) -> None:
        """put, get, cp, mv, info and del with SigV2 in the header"""
        path, down = Path(scratch) / "up", Path(scratch) / "down"
        path.write_bytes(b"second" * 50_000)
        self.s3("--signature-v2", "put", str(path), self.uri("v2/plain"))
        self.s3("--signature-v2", "cp", self.uri("v2/plain"), self.uri("v2/copy"))
        self.s3("--signature-v2", "mv", self.uri("v2/copy"), self.uri("v2/moved"))
        self.s3("--signature-v2", "get", "--force", self.uri("v2/moved"), str(down))
        assert down.read_bytes() == path.read_bytes()
        assert "300000" in self.s3("info", self.uri("v2/moved"))
        self.s3("--signature-v2", "del", "--recursive", self.uri("v2/"))

    def try_signature_v2_copy_of_a_blank(self, scratch: str) -> None:
        """put and cp of a key with a blank in it with SigV2"""
        path = Path(scratch) / "up"
        path.write_bytes(b"body")
        self.s3("--signature-v2", "put", str(path), self.uri("blank/a b"))
        self.s3("--signature-v2", "cp", self.uri("blank/a b"), self.uri("blank/c d"))
