"""Checks the arguments of samplers, and the states that samplers load from checkpoints. A state is checked
before any of it is used, so that a wrong checkpoint changes nothing.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral
from typing import Any

from shadeproxy_sdk.errors import ConfigError

_LATER = frozenset({"digest", "drop_last", "batch_size", "coverage_epochs", "repeat", "rank"})
"""Settings that states saved by earlier versions of the SDK do not have; states of mode "shade" had no
"rank".
"""


def check_job(job: Any) -> None:
    """Raise ConfigError unless ``job`` is what ``Client.job`` returns, or has its attributes."""
    if not hasattr(job, "manifest") or not hasattr(job, "announce"):
        raise ConfigError(f"job is a {type(job).__name__}: give what client.job(...) returned")


def check_count(name: str, value: Any) -> None:
    """Raise ConfigError unless ``value``, the argument ``name``, is a whole number from 0 on."""
    if not isinstance(value, Integral) or int(value) < 0:
        raise ConfigError(f"{name} {value!r}: give a whole number from 0 on")


def check_epoch(epoch: Any) -> int:
    """Return ``epoch``, of any type of integer, as an int. Raises ConfigError unless it is a whole number
    from 0 on.
    """
    with suppress(TypeError):
        epoch = operator.index(epoch)
    check_count("epoch", epoch)
    return int(epoch)


def check_state(state: Any, shape: Mapping[str, Any], drawn: Sequence[str]) -> None:
    """Raise ConfigError unless ``state`` is a sampler's state with the settings ``shape``, and has the fields
    ``drawn``.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(f"the state is a {type(state).__name__}: give what sampler.state_dict() returned")
    for name, value in shape.items():
        if name not in state and name not in _LATER:
            raise _lacks(name)
        if state.get(name, value) != value:
            if name == "digest":
                raise _of_other_dataset(state[name], value)
            raise ConfigError(
                f"the checkpoint's sampler has {name} {state[name]!r}, this one {value!r}: "
                "resume with the saved value, or start the epoch again without the checkpoint"
            )
    for name in ("epoch", "position", *drawn):
        if name not in state:
            raise _lacks(name)
    for name in ("epoch", "position"):
        if not isinstance(state[name], Integral) or int(state[name]) < 0:
            raise ConfigError(f"the state has {name} {state[name]!r}: it must be a whole number from 0 on")


@contextmanager
def explained() -> Iterator[None]:
    """Raise ConfigError in place of the errors that reading a damaged state causes."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"the state is damaged ({type(error).__name__}: {error}): "
            "give all that sampler.state_dict() returned"
        ) from error


def _of_other_dataset(saved: Any, digest: Any) -> ConfigError:
    return ConfigError(
        f"the checkpoint is of another dataset (digest {saved}, here {digest}), whose ids mean other "
        "samples: resume with the same objects, or start without the checkpoint. If the same samples lie "
        "only at another place now, in the same order, remove 'digest' from the state"
    )


def _lacks(name: str) -> ConfigError:
    return ConfigError(f"the state has no {name!r}: give all that sampler.state_dict() returned")
