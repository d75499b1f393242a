"""The history of one object: the order in which the origin carried its writes out. The history gives the
verdict on each read of the object.

A read may return the state of a write, unless a later write was answered with success before the read began.
"Later" means the order at the origin. A write whose outcome its client does not know may be carried out at
any time, even after the client's next write was answered.
"""

from typing import Final

RIGHT, STALE, WRONG = "right", "stale", "wrong"
ABSENT: Final = 0
"""The state of an object that does not exist. Writes that make a body are numbered from 1."""


class History:
    """The states of one object, in the order in which the object took them on at the origin. ``ABSENT`` is
    the first state.

    ``floor``: index in ``states`` of the newest state whose write was answered with success; a read may not
    return an older state. ``seen``: index of the newest state that a read has returned. ``offences``:
    descriptions of writes that the proxies repeated too late or answered wrongly.
    """

    def __init__(self) -> None:
        self.states: list[int] = [ABSENT]
        self.times: list[float] = [float("-inf")]
        self.floor = 0
        self.seen = 0
        self.repeated = 0
        self.offences: list[str] = []
        self._last: dict[int, int] = {ABSENT: 0}
        self._refused: set[int] = set()

    @property
    def current(self) -> int:
        return self.states[-1]

    def carry_out(self, state: int, now_s: float) -> None:
        """Add ``state`` to the history, because the origin carried out the write that makes it."""
        first = self._last.get(state)
        if state != ABSENT and first is not None:
            self.repeated += 1
            if first < self.floor:
                self.offences.append(f"write {state} was repeated after a newer one had been answered")
        if state in self._refused:
            self.offences.append(f"write {state} was refused, and carried out afterwards")
        self._last[state] = len(self.states)
        self.states.append(state)
        self.times.append(now_s)

    def acknowledge(self, state: int, began_s: float) -> None:
        """Raise the floor to ``state``, because the write that makes it was answered with success. The write
        was sent at ``began_s``.
        """
        if state == ABSENT:
            # A DELETE has no number, so all removals look alike. Take the earliest removal that the answer
            # may mean: it raises the floor least, so that no right read is judged stale.
            places = [place for place, at_s in enumerate(self.times) if at_s >= began_s]
            place = next((one for one in places if self.states[one] == ABSENT), None)
        else:
            place = self._last.get(state)
        if place is None:
            self.offences.append(f"write {state or 'of nothing'} was answered, and not carried out")
        else:
            self.floor = max(self.floor, place)

    def refuse(self, state: int) -> None:
        """Note that the write that makes ``state`` was refused. A refusal promises that the write is never
        carried out.
        """
        if state == ABSENT:
            return
        if state in self._last:
            self.offences.append(f"write {state} was carried out, and refused")
        self._refused.add(state)

    def judge(self, state: int, floor: int) -> str:
        """Return the verdict on a read that returned ``state``. ``floor``: the history's floor at the moment
        when the read began.
        """
        place = self._last.get(state)
        if place is None:
            return WRONG
        return RIGHT if place >= floor else STALE

    def place_of(self, state: int) -> int:
        """Return the last index of ``state`` in the history. The object must have had that state."""
        return self._last[state]
