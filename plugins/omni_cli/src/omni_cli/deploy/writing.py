"""Configs as files: YAML and JSON that :func:`load_config` reads back equal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from omni_core.api import ConfigError, PipelineConfig
from omni_core.runtime_api import read_yaml, structure, unstructure


def dump_json(config: PipelineConfig) -> str:
    """Return the config as JSON, which is also YAML; which :func:`load_config` reads back equal.

    Raises:
        ConfigError: a number is not finite, for which JSON has no form.
    """
    values = unstructure(config)
    for path, number in _not_finite(values, ""):
        raise ConfigError(
            f"{path}: JSON has no form of {number}; write the config as YAML: omni config show --format yaml"
        )
    return json.dumps(values, indent=2, ensure_ascii=False)  # YAML knows no pairs of surrogates


def _not_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _not_finite(inner, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _not_finite(inner, f"{path}[{inner.get('name', index) if isinstance(inner, dict) else index}]")
    elif isinstance(value, float) and not isfinite(value):
        yield path, value


def dump_yaml(config: PipelineConfig) -> str:
    """Return the config as YAML; which :func:`load_config` reads back equal."""
    yaml, stream = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False  # type: ignore[assignment]
    yaml.dump(unstructure(config), stream)
    return stream.getvalue()


def load_config(path: str | Path) -> PipelineConfig:
    """Read a whole pipeline from a YAML or JSON file, structured but not yet validated."""
    return structure(read_yaml(path))
