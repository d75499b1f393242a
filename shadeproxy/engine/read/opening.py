"""The context manager by which a read is opened and left."""

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from shadeproxy.engine.read.reading import EngineReading


class Opening:
    """The context manager that ``Engine.open`` returns. ``enter`` opens ``reading``, and ``leave`` releases
    it.
    """

    def __init__(
        self,
        reading: EngineReading,
        enter: Callable[[EngineReading], Coroutine[Any, Any, EngineReading]],
        leave: Callable[[EngineReading], None],
    ) -> None:
        self._reading = reading
        self._enter = enter
        self._leave = leave

    def __aenter__(self) -> Coroutine[Any, Any, EngineReading]:
        return self._enter(self._reading)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self._reading)
