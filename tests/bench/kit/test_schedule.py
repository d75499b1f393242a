"""The schedule of faults says which call gets which fault, in which order, and when the faults end."""

from shadeproxy_bench.reliability.kit.schedule import Schedule


def schedule(**options):
    return Schedule(str.startswith, **options)


def test_an_entry_waits_for_its_call_while_others_pass():
    noted = []
    script = schedule(script=["read a", "write b"], noted=noted.append)
    assert [script.next(one) for one in ("write", "read", "read", "write", "write")] == [
        None,
        "read a",
        None,
        "write b",
        None,
    ]
    assert noted == ["read a", "write b"]


def test_what_is_hastened_comes_first_and_the_end_ends_all():
    script = schedule(script=["read a"], rates={"read often": 1.0})
    script.hasten("read b")
    assert [script.next("read") for _ in range(3)] == ["read b", "read a", "read often"]
    script.enqueue("read c")
    script.end()
    assert script.next("read") is None


def test_rates_are_met_and_the_same_seed_draws_the_same():
    def drawn(seed):
        one = schedule(rates={"read a": 0.1, "read b": 0.3, "write c": 1.0}, seed=seed)
        return [one.next("read") for _ in range(2000)]

    first = drawn(1)
    assert first == drawn(1) != drawn(2)
    assert 140 < first.count("read a") < 260
    assert 500 < first.count("read b") < 700
    assert first.count("write c") == 0
