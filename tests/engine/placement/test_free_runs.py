import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shadeproxy.engine.placement.free_runs import cheapest_run

SEGMENT = 1000


@st.composite
def records(draw):
    starts, stops, at = [], [], 0
    for _ in range(draw(st.integers(0, 30))):
        at += draw(st.integers(0, 60))
        length = draw(st.integers(1, 80))
        if at // SEGMENT != (at + length - 1) // SEGMENT:
            at = (at // SEGMENT + 1) * SEGMENT
        starts.append(at)
        stops.append(at + length)
        at += length
    beaten = draw(st.lists(st.booleans(), min_size=len(starts), max_size=len(starts)))
    return np.array(starts, np.int64), np.array(stops, np.int64), np.array(beaten, bool)


def brute_force(starts, stops, beaten, size):
    best = None
    for i in range(len(starts)):
        for j in range(i, len(starts)):
            if starts[j] // SEGMENT != starts[i] // SEGMENT or not beaten[i : j + 1].all():
                break
            left = stops[i - 1] if i and starts[i - 1] // SEGMENT == starts[i] // SEGMENT else starts[i]
            more = j + 1 < len(starts) and starts[j + 1] // SEGMENT == starts[j] // SEGMENT
            right = starts[j + 1] if more else stops[j]
            if right - left >= size:
                cost = int((stops - starts)[i : j + 1].sum())
                best = cost if best is None else min(best, cost)
    return best


@given(records(), st.integers(1, 500))
def test_the_run_is_beaten_long_enough_and_the_cheapest(case, size):
    starts, stops, beaten = case
    run = cheapest_run(starts, stops, beaten, size, SEGMENT)
    expected = brute_force(starts, stops, beaten, size)
    if run is None:
        assert expected is None
    else:
        assert beaten[run].all()
        assert int((stops - starts)[run].sum()) == expected
