"""A training process that reads samples through the SDK from the cache's own files, until it is killed.

Run it by ``python -m shadeproxy_bench.reliability.crash.reader URL SEED``. It prints the number of right
samples so far. At the first wrong byte it prints the reason, and exits with 1.
"""

import os
import sys
import time
from random import Random

import shadeproxy_sdk as shade
from shadeproxy_bench.reliability.crash.objects import BUCKET, FIXED_KEYS, body_of


def main(url: str, seed: int) -> int:
    rng, right = Random(seed), 0
    manifest = shade.Manifest.from_entries("read", [shade.Entry(BUCKET, key) for key in FIXED_KEYS])
    client = shade.Client(url, retry_s=0.05, timeout_s=20)
    while True:
        ids = rng.sample(range(len(FIXED_KEYS)), 8)
        try:
            found = client.read_many(manifest, ids)
        except shade.ShadeError:
            time.sleep(0.02)  # The proxy is gone, and the run will start another one.
            continue
        for number, body in zip(ids, found, strict=True):
            if body != body_of(FIXED_KEYS[number], 0):
                os.write(1, f"wrong {FIXED_KEYS[number]} {len(body)}\n".encode())
                return 1
            right += 1
        os.write(1, f"{right}\n".encode())
        time.sleep(0.004)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
