"""Options of a pipeline (``--option NAME=VALUE``): the check that every function which makes a config begins with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from omni_core.api import ConfigError, did_you_mean

DTYPES = ("float32", "bfloat16", "float16")
"""Names of the dtypes that networks compute in."""


def check_options(options: Mapping[str, Any], known: Collection[str], **choices: Collection[str]) -> None:
    """Check the names of options, and the values of those that have a few only.

    Args:
        choices: by option, the values that it may have.

    Raises:
        ConfigError: an unknown option, or another value; the message names the nearest.
    """
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"--option {name}: there is no such option{did_you_mean(name, known)}")
        if value not in choices.get(name, (value,)):
            raise ConfigError(f"--option {name}={value}: there is no such {name}{did_you_mean(value, choices[name])}")
