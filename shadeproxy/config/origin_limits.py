"""The tables ``[origin.timeouts]`` and ``[origin.retry]`` of config.toml, with every default."""

from typing import Annotated

from pydantic import Field, field_validator

from shadeproxy.config.fields import Duration, Section, Size


class Timeouts(Section):
    connect: Duration = 5.0
    read: Duration = 30.0
    first_byte: Duration = 25.0
    window: Duration = 30.0
    min_rate: Size = 1024

    @field_validator("connect", "read", "first_byte", "window")
    @classmethod
    def _some_time(cls, value: float) -> float:
        if not value:
            raise ValueError('0 does not mean "no limit": every request would be given up at once')
        return value


class Retry(Section):
    attempts: Annotated[int, Field(ge=1, le=20)] = 4
    backoff: Duration = 0.1
    max_backoff: Duration = 5.0
