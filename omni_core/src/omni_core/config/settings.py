"""Settings that a component alone knows, as a mapping in a config, read as an attrs class of the component's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from omni_core.errors import ConfigError, did_you_mean

S = TypeVar("S", bound=attrs.AttrsInstance)


def read_settings(cls: type[S], settings: Mapping[str, Any], kind: str) -> S:
    """``settings`` as an instance of ``cls``. ``kind``: the component's, such as ``relay``, for messages.

    Raises:
        ConfigError: there is no such setting, or its value is not valid.
    """
    known = [attribute.name for attribute in attrs.fields(cls)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"{kind}.settings.{name}: this {kind} has no such setting{did_you_mean(name, known)}")
    try:
        return cls(**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{kind}.settings: {error.args[0] if error.args else error}") from error
