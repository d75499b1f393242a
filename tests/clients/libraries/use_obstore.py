"""obstore, which offers Rust's object_store in Python."""

import random
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store


class Operations:
    version = f"obstore {obstore.__version__}"

    def __init__(self, where: Any) -> None:
        options: dict[str, Any] = {"allow_http": True}
        if where.ca_file:
            options["root_certificate"] = Path(where.ca_file).read_text()
        self._store = S3Store(where.bucket, endpoint=where.endpoint, client_options=options)

    def put(self, path: str, key: str) -> None:
        obstore.put(self._store, key, Path(path))

    def get(self, key: str, path: str) -> None:
        with Path(path).open("wb") as file:
            file.writelines(obstore.get(self._store, key).stream())

    def part(self, key: str, start: int, stop: int, path: str) -> None:
        Path(path).write_bytes(obstore.get_range(self._store, key, start=start, end=stop))

    def resume(self, key: str, path: str) -> None:
        etag = obstore.head(self._store, key)["e_tag"]
        with Path(path).open("ab") as file:
            options = {"range": {"offset": file.tell()}, "if_match": etag}
            file.write(obstore.get(self._store, key, options=options).bytes())

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        return [
            (one["path"], one["size"]) for batch in obstore.list(self._store, prefix=prefix) for one in batch
        ]

    def delete(self, keys: list[str]) -> None:
        obstore.delete(self._store, keys)

    def try_ranges_suffix_and_copy(self, scratch: str) -> None:
        """get_ranges, a suffix range, copy, rename, list_with_delimiter"""
        body = random.Random("obstore").randbytes(9 << 20)
        obstore.put(self._store, "ranges/a b", body)
        starts = [0, (4 << 20) - 3, 8 << 20]
        parts = obstore.get_ranges(self._store, "ranges/a b", starts=starts, lengths=[10] * 3)
        assert [bytes(part) for part in parts] == [body[at : at + 10] for at in starts]
        suffix = obstore.get(self._store, "ranges/a b", options={"range": {"suffix": 9}})
        assert bytes(suffix.bytes()) == body[-9:]
        obstore.copy(self._store, "ranges/a b", "ranges/copy")
        obstore.rename(self._store, "ranges/copy", "ranges/renamed")
        assert bytes(obstore.get(self._store, "ranges/renamed").bytes()) == body
        listed = obstore.list_with_delimiter(self._store, "ranges")
        assert [one["path"] for one in listed["objects"]] == ["ranges/a b", "ranges/renamed"]
