"""The tolerant reading of files with mistakes: whatever they hold, it ends in lines, and it says all that the strict one says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.config.components import component_problems
from omni_cli.config.lenient import resolved
from omni_cli.config.validate import shared_devices
from omni_cli.deploy.files import KEYS
from omni_cli.deploy.source import LayeredSource
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, OmniError
from omni_core.hookspecs import PipelineComponent
from omni_core.plugins import PluginRegistry
from omni_core.plugins.discovery import PluginRecord


def write(model_path: str, most: int = 16, device: str = "cpu") -> None:
    """Stand in for a factory."""


def made(model_path: str, *, dtype: str = "float32") -> PipelineConfig:
    """Return a pipeline of two stages."""
    if not isinstance(model_path, str) or model_path.startswith("a"):
        raise ConfigError(f"--model {model_path!r} is no folder")
    stages = [
        StageConfig(name="writer", process="w", factory=f"{__name__}:write", next="reader"),
        StageConfig(name="reader", process="r", factory=f"{__name__}:write", terminal=True),
    ]
    return PipelineConfig(model_path=model_path, name="writing", stages=stages)


def small() -> tuple[str, str]:
    """Return the checkpoint for a first try."""
    return "small", "a notice"


COMPONENT = PipelineComponent("writing", f"{__name__}:made", "writes", default_model=f"{__name__}:small")
REGISTRY = PluginRegistry([PluginRecord("plugin", "d", "1", "m", components={"omni_pipelines": [COMPONENT]})])


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.deploy.source.load_plugins", lambda: REGISTRY)
    monkeypatch.setenv("OMNI_PLATFORM", "cpu")


names = st.sampled_from(
    ["writer", "reader", "*", "wrtier", "dtype", "most", "device", "gpu", "gpu_memory", "relay", "env", "images"]
)
fields = st.sampled_from(
    [
        *(
            "factory_args",
            "gpu",
            "gpu_memory",
            "tp_size",
            "replicas",
            "process",
            "relay",
            "env",
            "host",
            "factory",
            "name",
            "nothing",
        )
    ]
)
scalars = st.sampled_from([None, True, -1, 0, 1, 2.5, "x", "writing", "auto", "absent", "0.5", "12GiB"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names | fields, inner, max_size=3),
    max_leaves=8,
)
stages = st.dictionaries(names, st.dictionaries(fields, values, max_size=3) | values, max_size=3)
documents = st.fixed_dictionaries(
    {},
    optional={
        "pipeline": st.sampled_from(["writing", "writting", "nothing"]) | values,
        "model_path": st.sampled_from(["m", "absent"]) | values,
        "base": st.sampled_from(["nowhere.yaml", "writing/none"]) | values,
        "options": st.dictionaries(names, values, max_size=2) | values,
        "stages": stages | values,
        "platforms": st.dictionaries(
            st.sampled_from(["cpu", "cuda", "gpu"]), st.fixed_dictionaries({"stages": stages}) | values
        ),
    },
).flatmap(lambda given: st.dictionaries(st.sampled_from(KEYS), values, max_size=3).map(lambda more: {**more, **given}))


@given(documents)
def test_whatever_a_file_holds_everything_is_said(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "t.yaml"
    path.write_text(json.dumps(document))
    source = LayeredSource(str(path), platform="cpu")

    def components(config: PipelineConfig) -> list[str]:
        return [*component_problems(config, REGISTRY)]

    try:
        source.files(REGISTRY)
    except OmniError:
        return  # the file itself cannot be read
    config, lines = resolved(source, REGISTRY, [shared_devices], [components])
    assert (config is None) == bool(lines)
    try:
        source.resolve(REGISTRY)
        strict = []
    except OmniError as error:
        strict = str(error).splitlines()
    missing = [line for line in strict if line not in lines]
    assert not missing, f"{missing} is not in {lines}"
