"""The proxy of a chaos run, with a planted fault: under the rule ``revalidate`` it never asks again."""

from shadeproxy.config import Settings
from shadeproxy_bench.reliability.chaos.proxy import main

_load = Settings.load


def load(path):
    path.write_text(path.read_text().replace('"revalidate"', '"immutable"'))
    return _load(path)


Settings.load = load
main()
