"""Layers: associative, never without an effect, and honest about where every value was written, whatever they say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.deploy.files import leaves
from omni_cli.deploy.override_layers import Layer, apply
from omni_core.client.source import EVERY_STAGE
from omni_core.config.loading import unstructure
from omni_core.config.overrides import Override
from omni_core.config.schema import PipelineConfig, RelayConfig, StageConfig
from omni_core.errors import ConfigError

STAGES = ("first", "second")
CONFIG = PipelineConfig(
    model_path="m",
    stages=[
        StageConfig(name="first", factory="m:f", process="a", next="second", factory_args={"a": 0, "b": {"c": 1}}),
        StageConfig(name="second", factory="m:g", process="b", terminal=True, factory_args={"a": 0}),
    ],
)

scalars = st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from(["x", "y", ""]), st.none())
"""Values of arguments, which may be anything."""

arguments = st.recursive(
    scalars, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6
)
mappings = st.dictionaries(st.sampled_from("abc"), arguments, max_size=3)
stage_fields = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.integers(0, 3),
        "replicas": st.just(1),
        "startup_timeout": st.floats(1, 9),
        "factory_args": mappings,
        "env_defaults": st.nothing(),
        "relay": st.fixed_dictionaries({}, optional={"credits": st.integers(1, 9), "slot_size_mb": st.integers(1, 9)}),
    },
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "stages": st.dictionaries(st.sampled_from(STAGES), stage_fields, max_size=2),
        "retries": st.integers(0, 9),
        "env_defaults": st.dictionaries(st.sampled_from(["A", "B.C"]), st.sampled_from(["1", "2"])),
        "defaults": st.fixed_dictionaries({}, optional={"params": mappings}),
        "server": mappings,
    },
)


def layer(values: dict[str, Any], name: str) -> Layer:
    said = [
        each
        for key, value in values.items()
        for each in leaves((key,), value, lambda parts: f"{name}:{'.'.join(parts)}")
    ]
    return Layer(name, said)


def pruned(values: Any) -> Any:
    """Return a document without empty mappings, which say nothing."""
    if not isinstance(values, dict):
        return values
    left = {key: pruned(value) for key, value in values.items()}
    return {key: value for key, value in left.items() if value != {}}


def merged(lower: Any, higher: Any) -> Any:
    """Merge two documents as plain data: mappings by key, everything else replaced. Raises where a value would hide a mapping's part."""
    if not isinstance(higher, dict):
        return higher
    if not isinstance(lower, dict | None):
        raise ConfigError("a part of what has none")
    below = lower or {}
    return {**below, **{key: merged(below.get(key), value) for key, value in higher.items()}}


def outcome(*layers: Layer) -> Any:
    try:
        return unstructure(apply(CONFIG, *layers).config)
    except ConfigError:
        return "refused"


@given(documents, documents, documents)
def test_a_chain_of_files_can_be_flattened_anywhere(a: Any, b: Any, c: Any) -> None:
    a, b, c = pruned(a), pruned(b), pruned(c)
    apart = outcome(layer(a, "a"), layer(b, "b"), layer(c, "c"))
    if apart == "refused":
        return  # a layer that is wrong is refused, whatever would be laid over it
    for parts in (lambda: (merged(a, b), c), lambda: (a, merged(b, c))):
        low, high = parts()
        assert outcome(layer(low, "low"), layer(high, "high")) == apart


@given(documents, documents, documents)
def test_a_resolved_config_is_a_base_as_good_as_its_layers(a: Any, b: Any, c: Any) -> None:
    try:
        below = apply(CONFIG, layer(a, "a"), layer(b, "b")).config
    except ConfigError:
        return
    try:
        once = apply(below, layer(c, "c")).config
    except ConfigError:
        once = None
    assert outcome(layer(a, "a"), layer(b, "b"), layer(c, "c")) == ("refused" if once is None else unstructure(once))


def value_at(config: PipelineConfig, parts: tuple[str, ...]) -> Any:
    """Return the value of a path in a config's plain data, or ``...`` where it has the default."""
    values: Any = unstructure(config)
    if parts[0] == "stages":
        values, parts = next(each for each in values["stages"] if each["name"] == parts[1]), parts[2:]
    if parts[0] == "env_defaults":
        parts = ("env_defaults", ".".join(parts[1:]))
    for part in parts:
        if not isinstance(values, dict) or part not in values:
            return ...
        values = values[part]
    return values


@given(documents, documents)
def test_the_last_layer_that_says_a_value_is_in_force_and_is_named(a: Any, b: Any) -> None:
    layers = layer(a, "a"), layer(b, "b")
    try:
        resolved = apply(CONFIG, *layers)
    except ConfigError:
        return
    said = {
        each.path: each for each in (*layers[0].overrides, *layers[1].overrides)
    }  # the later in place of the earlier
    for path, override in said.items():
        others = [other.path for other in layers[1].overrides if other is not override]
        covered = any(f"{path}.".startswith(f"{other}.") or other.startswith(f"{path}.") for other in others)
        if covered and override in layers[0].overrides:
            assert path not in resolved.provenance or resolved.provenance[path][0] != override.origin
            continue
        now = value_at(resolved.config, override.parts)
        assert now == override.value or (now is ... and is_default(override))
        origin, _, value = resolved.provenance[path]
        assert (origin, value) == (override.origin, override.value)
    assert resolved.provenance.keys() <= said.keys(), "nothing else is said to have been set"


def is_default(override: Override) -> bool:
    """Return whether the value of an override is what the field has by itself, which plain data leaves out."""
    name = override.parts[-1]
    classes = (RelayConfig,) if "relay" in override.parts else (StageConfig, PipelineConfig)
    defaults = [getattr(cls.__attrs_attrs__, name).default for cls in classes if hasattr(cls.__attrs_attrs__, name)]
    return override.value in defaults


paths = st.one_of(
    st.tuples(
        st.sampled_from([*STAGES, "third", EVERY_STAGE]),
        st.sampled_from(["gpu", "gpuu", "replicas", "next", "factory_args", "relay"]),
    ),
    st.tuples(st.sampled_from(STAGES), st.just("factory_args"), st.sampled_from("abz")),
    st.tuples(st.just(EVERY_STAGE), st.just("factory_args"), st.sampled_from("abz")),
    st.tuples(st.sampled_from(STAGES), st.just("relay"), st.sampled_from(["credits", "credit"])),
    st.tuples(st.sampled_from(["retries", "retires", "stages", "relays", "server", "name"])),
)


@given(paths, st.one_of(scalars, st.integers(4, 9), st.just("many"), st.just([1]), st.just({"k": 1})))
def test_an_override_changes_the_config_or_is_an_error_that_names_it(parts: tuple[str, ...], value: Any) -> None:
    override = Override(parts, value, "--set it")
    refused = ""
    try:
        resolved = apply(CONFIG, Layer("--set", [override]))
    except ConfigError as error:
        refused = str(error)
    if refused:
        assert "--set it" in refused
        return
    stages = STAGES if parts[0] == EVERY_STAGE else (parts[0],) if parts[0] in STAGES else ()
    targets = [("stages", stage, *parts[1:]) for stage in stages] or [parts]
    hit = [
        each for each in targets if each[1:][0:1] == () or ".".join(each).removeprefix("stages.") in resolved.provenance
    ]
    assert hit
    for each in hit:
        now = value_at(resolved.config, each)
        assert now == value or (
            now is ... and (is_default(Override(each, value, "")) or value == {} or value is None)
        ), (now, value)


def test_every_stage_means_those_whose_factory_has_the_argument() -> None:
    takes = {"first": ["size", "device"], "second": ["size"]}

    def parameters(stage: Any) -> list[str]:
        return takes[stage["name"]]

    def factory_args(*texts: tuple[str, Any]) -> dict[str, Any]:
        overrides = [Override(tuple(path.split(".")), value, f"--set {path}") for path, value in texts]
        config = apply(CONFIG, Layer("--set *", overrides), parameters=parameters).config
        return {stage.name: {**stage.factory_args, "gpu": stage.gpu} for stage in config.stages}

    assert {name: args["size"] for name, args in factory_args(("*.factory_args.size", 3)).items()} == {
        "first": 3,
        "second": 3,
    }
    found = factory_args(("*.factory_args.b", 3), ("*.gpu", 1))
    assert found == {"first": {"a": 0, "b": 3, "gpu": 1}, "second": {"a": 0, "gpu": None}}
    with pytest.raises(
        ConfigError,
        match=r"--set \*\.factory_args\.sise: no stage has a factory that takes 'sise'; did you mean 'size'",
    ):
        factory_args(("*.factory_args.sise", 3))
    both = factory_args(("first.factory_args.size", 4), ("*.factory_args.size", 3))
    assert (both["first"]["size"], both["second"]["size"]) == (4, 3), "a stage by name wins, in whatever order"


def test_presets_of_relays_are_written_out_whoever_defines_them() -> None:
    file = layer({"stages": {"first": {"relay": "fast"}}, "relays": {"fast": {"credits": 4}}}, "file")
    above = layer({"relays": {"fast": {"slot_size_mb": 8}}}, "above")
    config = apply(CONFIG, file, above, Layer("--set", [Override(("first", "relay", "credits"), 5, "--set")])).config
    assert config.stages[0].relay == RelayConfig(slot_size_mb=8, credits=5)
    with pytest.raises(ConfigError, match=r"file:stages\.first\.relay: `relays` has no 'slow'; there are: fast"):
        apply(CONFIG, layer({"stages": {"first": {"relay": "slow"}}, "relays": {"fast": {"credits": 4}}}, "file"))
    with pytest.raises(ConfigError, match=r"relays\[unused\]\.credits: must be int, is 'x'"):
        apply(CONFIG, layer({"relays": {"unused": {"credits": "x"}}}, "file"))
    with pytest.raises(ConfigError, match=r"relays: must be \{NAME: \{field: value\}\}"):
        apply(CONFIG, layer({"relays": {"fast": 3}}, "file"))


def test_problems_of_every_kind_come_at_once_each_with_where_it_was_written() -> None:
    file = layer({"stages": {"first": {"gpuu": 1, "tp_size": "two"}, "second": {"replicas": 0}}, "retries": -1}, "file")
    with pytest.raises(ConfigError) as caught:
        apply(CONFIG, file, Layer("--set", [Override(("third", "gpu"), 0, "--set third.gpu=0")]))
    first, *others = sorted(str(caught.value).splitlines())
    assert first.startswith("--set third.gpu=0: 'third' is neither a stage nor a pipeline field")
    assert others == [
        "file:retries: retries: must not be negative, is -1",
        "file:stages.first.gpuu: 'gpuu' is not a field here; did you mean 'gpu'?",
        "file:stages.first.tp_size: stages[first].tp_size: must be int, is 'two'",
        "file:stages.second.replicas: stages[second].replicas: must be at least 1, is 0",
    ]


def test_a_whole_value_hides_the_origins_of_its_parts() -> None:
    part = Layer("low", [Override(("first", "factory_args", "b", "c"), 2, "low")])
    whole = Layer("high", [Override(("first", "factory_args"), {"x": 1}, "high")])
    resolved = apply(CONFIG, part, whole)
    assert resolved.config.stages[0].factory_args == {"x": 1}
    assert [*resolved.provenance] == ["first.factory_args"]
