"""Admission: a request is checked against the pipeline's interface before anything of it is computed."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from omni_core.config.schema import PipelineConfig, RequestDefaults, RequestLimits, StageConfig
from omni_core.coordinator.admission import admission
from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.hookspecs import PartComponent
from omni_core.interface import SPEECH, Interface, Parameter, ParameterGroup
from omni_core.plugins import PluginRecord, PluginRegistry, load_plugins
from omni_core.protocol.messages import OmniRequest

NO_PLUGINS = PluginRegistry([])
STAGE = StageConfig(name="read", process="p", factory="m:f", terminal=True, affinity_key="session")
CONFIG = PipelineConfig(
    model_path="none",
    stages=[STAGE],
    interface=Interface(
        roles={SPEECH: "read"},
        inputs=["text", "audio"],
        outputs=["audio"],
        groups=[ParameterGroup("reader", SPEECH, "the sound", [Parameter("temperature", "number", "how hot")])],
        metadata=[Parameter("speaker", "string", "the voice")],
    ),
)


def asking(*kinds: str, **fields: Any) -> OmniRequest:
    parts = [{"type": kind} for kind in kinds]
    inputs = {"messages": [{"role": "user", "content": "text"}, {"role": "user", "content": parts}]}
    return OmniRequest(inputs, **fields)


def test_parameters_are_put_into_their_groups_and_nothing_else_changes() -> None:
    given = asking("text", "audio", params={"temperature": 1}, metadata={"speaker": 2}, timeout=3.0)
    admitted = admission(CONFIG, NO_PLUGINS)(given)
    assert admitted == evolve(given, params={"reader": {"temperature": 1}}, metadata={"speaker": "2"})
    assert given.params == {"temperature": 1}


def test_the_runtime_and_the_placement_have_metadata_of_their_own() -> None:
    metadata = {"session": ("any", "thing"), "traceparent": "00-1", "tracestate": "x"}
    assert admission(CONFIG, NO_PLUGINS)(asking(metadata=metadata)).metadata == metadata


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asking("image"), ["messages[1].content[0].type", "no 'image'", "it takes: text, audio"]),
        (asking("text", "adio"), ["messages[1].content[1].type", "did you mean 'audio'"]),
        (asking(modalities=["text"]), ["modalities", "'text' is not offered", "offers: audio"]),
        (asking(modalities=[]), ["modalities"]),
        (asking(modalities="audio"), ["modalities", "must be a non-empty list of: audio"]),
        (asking(params={"temprature": 1}), ["params.temprature"]),
        (asking(metadata={"speeker": 1}), ["metadata.speeker: no such key", "did you mean 'speaker'"]),
        (OmniRequest({"messages": [], "references": [{}]}), ["inputs.references"]),
    ],
)
def test_unsupported_inputs_are_rejected(request_: OmniRequest, words: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        admission(CONFIG, NO_PLUGINS)(request_)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "inputs", [None, 3, {"messages": 3}, {"messages": [3]}, {"messages": [{"content": [3, {"type": 3}]}]}]
)
def test_the_form_of_messages_is_left_to_the_stages(inputs: Any) -> None:
    assert admission(CONFIG, NO_PLUGINS)(OmniRequest(inputs)).inputs == inputs


def test_without_an_interface_nothing_is_checked() -> None:
    request = asking("smell", params={"any": 1}, modalities=["taste"], metadata={"x": 1})
    assert admission(evolve(CONFIG, interface=None), NO_PLUGINS)(request) is request


def test_fields_that_an_interface_does_not_list_are_not_checked() -> None:
    silent = evolve(CONFIG, interface=Interface())
    assert admission(silent, NO_PLUGINS)(asking("smell", modalities=["taste"])).modalities == ["taste"]


@pytest.mark.parametrize("name", ["hot", "m:Hot"])
def test_a_named_part_declares_parameters_of_its_own(name: str) -> None:
    bias = Parameter("bias", "mapping", "added to logits")
    heat = Parameter("heat", "number", "more heat", maximum=2)
    part = PartComponent("hot", "m:Hot", "a runner", parameters=(heat,), metadata=(bias,))
    record = PluginRecord("p", "omni-p", "1.0", "p.plugin", components={"omni_model_runners": [part]})
    stage = StageConfig(name="read", process="p", model_runner=name, scheduler="m:S", terminal=True)
    check = admission(evolve(CONFIG, stages=[stage]), PluginRegistry([record]))
    admitted = check(asking("text", params={"heat": 1.5}, metadata={"bias": {"7": 1.0}}))
    assert (admitted.params, admitted.metadata) == ({"reader": {"heat": 1.5}}, {"bias": {"7": 1.0}})
    with pytest.raises(InvalidRequestError, match=r"metadata\.bias: must be a mapping, is 7"):
        check(asking("text", metadata={"bias": 7}))
    with pytest.raises(InvalidRequestError, match=r"metadata\.bias: no such key"):
        admission(CONFIG, PluginRegistry([record]))(asking("text", metadata={"bias": {}}))


def test_defaults_are_what_a_request_does_not_say() -> None:
    defaults = RequestDefaults({SPEECH: {"temperature": 0.5}}, {"speaker": "ann"}, ["audio"])
    admit = admission(evolve(CONFIG, defaults=defaults), NO_PLUGINS)
    usual = admit(asking("text"))
    assert (usual.params, usual.metadata, usual.modalities) == (
        {"reader": {"temperature": 0.5}},
        {"speaker": "ann"},
        ["audio"],
    )
    own = admit(asking("text", params={"temperature": 0}, metadata={"speaker": "bob", "session": 1}))
    assert (own.params, own.metadata) == ({"reader": {"temperature": 0}}, {"speaker": "bob", "session": 1})
    with pytest.raises(ConfigError, match=r"defaults\.params\.reader\.heat: no such parameter"):
        admission(evolve(CONFIG, defaults=RequestDefaults({"reader": {"heat": 1}})), NO_PLUGINS)


def test_defaults_of_a_pipeline_without_an_interface_are_merged_as_they_are() -> None:
    defaults = RequestDefaults({"a": {"x": 1, "y": 1}, "b": 1}, {"m": 1})
    admit = admission(evolve(CONFIG, interface=None, defaults=defaults), NO_PLUGINS)
    found = admit(asking(params={"a": {"y": 2}, "c": 3}))
    assert (found.params, found.metadata) == ({"a": {"x": 1, "y": 2}, "b": 1, "c": 3}, {"m": 1})
    assert defaults.params == {"a": {"x": 1, "y": 1}, "b": 1}


@pytest.mark.parametrize(
    ("limits", "request_", "words"),
    [
        ({"audios": 1}, asking("audio", "audio"), "this request has 2 audios; at most 1 are allowed (limits.audios)"),
        ({"messages": 1}, asking("text"), "2 messages; at most 1"),
        ({"text_characters": 3}, asking("text"), "4 text characters; at most 3"),
        ({"text_characters": 3}, OmniRequest("long"), "4 text characters; at most 3"),
        ({"references": 0}, OmniRequest({"references": [{"path": "x"}]}), "1 references; at most 0"),
    ],
)
def test_a_request_beyond_a_limit_is_refused(limits: dict[str, int], request_: OmniRequest, words: str) -> None:
    for interface in (CONFIG.interface, None):
        config = evolve(CONFIG, limits=RequestLimits(**limits), interface=interface)
        with pytest.raises(InvalidRequestError) as caught:
            admission(config, load_plugins())(request_)
        assert words in str(caught.value)
    exact = evolve(CONFIG, limits=RequestLimits(audios=2, messages=2, text_characters=4))
    admission(exact, load_plugins())(asking("audio", "audio"))
