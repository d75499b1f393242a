"""Kill the proxy with kill -9 while clients read and write. Then compare every object with the origin; cached
pages survive.

`make test` runs a few rounds; SHADEPROXY_KILL_ROUNDS sets the number. `make crash` also kills at other points
of the code.
"""

import os
import random
import shutil
import signal
import threading
import time

import pytest
import urllib3

ROUNDS = int(os.environ.get("SHADEPROXY_KILL_ROUNDS", "3"))
KEYS = [f"{n:03d}" for n in range(60)]
RULES = '[[rules]]\nfreshness = "immutable"\n'


def body(seed: int) -> bytes:
    return random.Random(seed).randbytes(2_000 + seed * 977 % 30_000)


class Traffic:
    """Clients that read and overwrite objects until the proxy has ended."""

    def __init__(self, proxy, seed: int) -> None:
        self._proxy = proxy
        self._seed = seed
        self.answers = 0
        self.threads = [threading.Thread(target=self._work, args=(n,)) for n in range(4)]
        for thread in self.threads:
            thread.start()

    def _work(self, number: int) -> None:
        rng = random.Random(self._seed * 10 + number)
        pool = urllib3.PoolManager(retries=False)
        while True:
            url = f"{self._proxy.s3}/data/{rng.choice(KEYS)}"
            try:
                if rng.random() < 0.3:
                    answer = pool.request("PUT", url, body=body(rng.randrange(10**6)), timeout=20)
                else:
                    answer = pool.request("GET", url, timeout=20)
            except urllib3.exceptions.HTTPError:
                return
            assert answer.status == 200
            self.answers += 1


@pytest.mark.timeout(120 + 10 * ROUNDS)
@pytest.mark.parametrize("disks", [0, 2])
def test_kill_9_under_load(serve, bucket_directory, tmp_path, disks):
    """After kill -9 every answer is right. ``disks`` is the number of additional disks. Each round deletes
    one of these disks with all its pages.
    """
    (tmp_path / "rules.toml").write_text(RULES)
    for n, key in enumerate(KEYS):
        (bucket_directory / "data" / key).write_bytes(body(n))
    lost = [tmp_path / "disk-a", tmp_path / "disk-b"]
    tables = [f'{{path="{path}", capacity="256 KiB"}}' for path in lost]
    proxy = serve(
        tmp_path / "rules.toml",
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__ram__capacity="256 KiB",
        cache__disk__capacity="512 KiB",
        cache__disks=f"[{', '.join(tables[:disks])}]",
        policy__name="lru",  # moves pages between the tiers all the time
    )
    rng, survived = random.Random(ROUNDS), 0
    for turn in range(ROUNDS):
        traffic = Traffic(proxy, turn)
        while traffic.answers < 40:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.05)
        proxy.stop(signal.SIGKILL)
        for thread in traffic.threads:
            thread.join()
        if disks:
            shutil.rmtree(lost[turn % disks])
        proxy.start_whole()
        survived += sum(tier["pages"] for tier in proxy.stats()["tiers"].values())
        pool, wrong = urllib3.PoolManager(), []
        for key in KEYS:
            answer = pool.request("GET", f"{proxy.s3}/data/{key}")
            if answer.data != (bucket_directory / "data" / key).read_bytes():
                wrong.append((turn, key, answer.headers["x-shade-cache"]))
        assert wrong == []
    # The number of surviving pages depends on the progress of the clients. `make crash` checks exactly which
    # pages survive.
    assert survived >= 5 * ROUNDS
