"""A start leaves a disk out, clients overwrite objects, and the disk comes back. The old versions on the disk
are not served.
"""

import signal
import urllib.request

import pytest

from tests.support.served import log_of

COUNT = 40
SIZE = 8000


def put(served, number: int, body: bytes) -> None:
    request = urllib.request.Request(f"{served.s3}/data/{number}", body, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def set_disks(served, tables: str) -> None:
    place = next(n for n, given in enumerate(served.arguments) if given.startswith("cache.disks="))
    served.arguments[place] = f"cache.disks=[{tables}]"


def read_all(served) -> tuple[dict[int, bytes], list[str]]:
    bodies, sources = {}, []
    for number in range(COUNT):
        with urllib.request.urlopen(f"{served.s3}/data/{number}", timeout=30) as answer:
            bodies[number] = answer.read()
            sources.append(answer.headers["x-shade-cache"])
    return bodies, sources


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_disk_that_was_away_has_no_old_answers(serve, bucket_directory, tmp_path, end):
    (tmp_path / "rules.toml").write_text('[[rules]]\nfreshness = "immutable"\n')
    for number in range(COUNT):
        (bucket_directory / "data" / str(number)).write_bytes(b"old" * (SIZE // 3))
    both = ", ".join(f'{{path="{tmp_path / name}", capacity="1 MiB"}}' for name in ("disk-a", "disk-b"))
    one = f'{{path="{tmp_path / "disk-b"}", capacity="1 MiB"}}'
    served = serve(
        tmp_path / "rules.toml",
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__ram__capacity="64 KiB",
        cache__disk__capacity="0",
        cache__disks=f"[{both}]",
        policy__name="lru",
    )
    read_all(served)
    held = served.stats()["tiers"]
    assert held["disks[0]"]["pages"] > 5
    served.stop(end)
    set_disks(served, one)
    served.start_whole()
    fresh = {number: b"new" * (SIZE // 3 + number) for number in range(0, COUNT, 2)}
    for number, body in fresh.items():
        put(served, number, body)
    served.stop(end)
    set_disks(served, both)
    served.start_whole()
    assert served.stats()["tiers"]["disks[0]"]["in_doubt"] == 1
    assert served.stats()["tiers"]["disks[1]"]["in_doubt"] == 0
    bodies, sources = read_all(served)
    expected = {number: (bucket_directory / "data" / str(number)).read_bytes() for number in range(COUNT)}
    assert bodies == expected
    assert "disk" in sources
    assert any("was not used by the latest start" in str(line) for line in log_of(served))
    # The pages were checked in the session before. A start with the same disks checks none of them again.
    served.stop()
    served.start_whole()
    assert served.stats()["tiers"]["disks[0]"]["in_doubt"] == 0
    assert read_all(served)[0] == expected
