"""Composition of pipelines: names, edges, interfaces and settings of the whole, from configs alone."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from omni_core.config.completion import Machine, Placement, completed
from omni_core.config.compose import Edge, compose, place
from omni_core.config.loading import structure, unstructure
from omni_core.config.schema import PartConfig, PipelineConfig, RelayConfig, RequestDefaults, StageConfig
from omni_core.errors import ConfigError
from omni_core.interface import SPEECH, TEXT, VOICE, Interface, Parameter, ParameterGroup

HEAT = Parameter("heat", "number", "how hot")


def stage(name: str, **fields: Any) -> StageConfig:
    return StageConfig(name=name, factory=f"m:{name}", **{"process": "one", **fields})


def chat(role: str = TEXT, **fields: Any) -> PipelineConfig:
    """A pipeline with routes, a fan-in and a stream between its stages."""
    stages = [
        stage("read", next=["look", "think"], route_fn="m:route"),
        stage("look", next="think", project_payload={"think": "m:short"}),
        stage("think", wait_for=["read", "look"], merge_fn="m:merge", next="write", stream_to=["write"], process="net"),
        stage("write", terminal=True),
    ]
    usual = Interface(
        roles={role: "write"},
        inputs=["text", "image"],
        outputs=["text"],
        groups=[ParameterGroup("write", role, "how it writes", [HEAT])],
        params=[Parameter("words", "integer", "how many", aliases=["length"])],
        metadata=[Parameter("language", "string", "which")],
        limits={"tokens": 10},
    )
    return PipelineConfig(
        **{"model_path": "chat model", "name": "chat", "stages": stages, "interface": usual, **fields}
    )


def voice(**fields: Any) -> PipelineConfig:
    interface = Interface(
        roles={SPEECH: "say"},
        inputs=["text", "reference"],
        input_streams=["text"],
        outputs=["audio"],
        groups=[ParameterGroup("say", SPEECH, "how it speaks", [HEAT])],
        metadata=[Parameter(VOICE, "string", "who"), Parameter("language", "string", "which")],
        voices=["anna"],
        sample_rate=16_000,
        word_times=True,
        speech_system=True,
    )
    stages = [stage("say", next="sound"), stage("sound", terminal=True)]
    return PipelineConfig(
        **{"model_path": "voice model", "name": "voice", "stages": stages, "interface": interface, **fields}
    )


def test_stages_keep_their_edges_under_the_names_of_the_whole() -> None:
    config = compose({"llm": chat(), "tts": voice()}, [Edge("llm", "tts", "m:to_text")])
    assert [each.name for each in config.stages] == [
        "llm-read",
        "llm-look",
        "llm-think",
        "llm-write",
        "tts-say",
        "tts-sound",
    ]
    assert config.resolved_entry_stage == "llm-read"
    read, look, think, write, say, sound = config.stages
    assert (read.next, read.route_fn, read.process, read.part) == (
        ["llm-look", "llm-think"],
        "m:route",
        "llm-one",
        "llm",
    )
    assert look.project_payload == {"llm-think": "m:short"}
    assert (think.wait_for, think.stream_to, think.process) == (["llm-read", "llm-look"], ["llm-write"], "llm-net")
    assert (write.next, write.terminal, write.project_payload) == (["tts-say"], False, {"tts-say": "m:to_text"})
    assert (write.stream_to, write.chunks_to) == ([], [])  # its chunks were the client's, who gets no more of it
    assert (say.process, sound.terminal, sound.chunks_to) == ("tts-one", True, None)
    assert config.parts["llm"] == PartConfig(
        entry="read", model_path="chat model", metadata={"language": "llm_language"}
    )
    assert config.parts["tts"] == PartConfig(
        entry="say", model_path="voice model", outputs=["audio"], reads_streams=True
    )
    assert structure(unstructure(config)) == config


def test_an_edge_may_stream_and_the_client_may_get_the_results_too() -> None:
    config = compose({"llm": chat(), "tts": voice()}, [Edge("llm", "tts", stream=True, keep=True)])
    write = config.stage("llm-write")
    assert (write.terminal, write.next, write.stream_to, write.chunks_to) == (
        True,
        ["tts-say"],
        ["tts-say"],
        ["tts-say"],
    )
    assert config.terminal_stages == ["llm-write", "tts-sound"]
    assert config.interface is not None
    assert config.interface.outputs == ["text", "audio"]
    assert config.parts["llm"].outputs == ["text"]


def test_the_interface_is_joined_and_names_that_collide_get_a_prefix() -> None:
    parts = {"first": chat(), "last": chat(), "tts": voice()}
    config = compose(parts, [Edge("first", "last"), Edge("last", "tts", keep=True)])
    interface = config.interface
    assert interface is not None
    assert interface.roles == {f"first_{TEXT}": "first-write", TEXT: "last-write", SPEECH: "tts-say"}
    assert [(group.name, group.role) for group in interface.groups] == [
        ("first_write", f"first_{TEXT}"),
        ("write", TEXT),
        ("say", SPEECH),
    ]
    assert [(each.name, each.aliases) for each in interface.params] == [("first_words", []), ("words", ["length"])]
    assert [each.name for each in interface.metadata] == ["first_language", "last_language", VOICE, "language"]
    assert (interface.inputs, interface.outputs) == (["text", "image"], ["text", "audio"])
    assert (interface.voices, interface.sample_rate, interface.word_times) == (["anna"], 16_000, True)
    assert interface.speech_system
    assert interface.limits == {"first_tokens": 10, "tokens": 10}
    assert config.parts["first"].params == {"write": "first_write", "words": "first_words"}
    assert config.parts["last"].metadata == {"language": "last_language"}
    assert interface.check_params({"heat": 1, "first_write": {"heat": 2}}) == {
        "write": {"heat": 1},
        "first_write": {"heat": 2},
    }


def test_settings_of_parts_are_joined() -> None:
    first = chat(
        relay_backend="shm",
        fused_stages=[["think", "write"]],
        runtime_overrides={"think": {"heat": 1}},
        env_defaults={"A": "1"},
        max_in_flight=9,
        defaults=RequestDefaults(metadata={"language": "de"}),
    )
    second = voice(relay_backend="nixl", env_defaults={"B": "2"}, defaults=RequestDefaults({"say": {"heat": 3}}))
    stages = [evolve(second.stages[0], relay=RelayConfig(credits=7)), second.stages[1]]
    stages = [evolve(each, affinity_key="language") for each in stages]
    config = compose({"a": first, "b": evolve(second, stages=stages)}, [Edge("a", "b")], retries=2, name="both")
    assert (config.relay_backend, config.stage("b-say").relay) == ("shm", RelayConfig(credits=7, backend="nixl"))
    assert config.stage("b-sound").relay is None
    others = compose({"a": first, "b": second}, [Edge("a", "b")])
    assert [each.relay for each in others.stages if each.part == "b"] == [RelayConfig(backend="nixl")] * 2
    assert config.fused_stages == [["a-think", "a-write"]]
    assert config.runtime_overrides == {"a-think": {"heat": 1}}
    assert (config.env_defaults, config.max_in_flight, config.retries, config.name) == (
        {"A": "1", "B": "2"},
        9,
        2,
        "both",
    )
    assert config.defaults == RequestDefaults({"say": {"heat": 3}}, {"a_language": "de"})
    assert config.stage("b-sound").affinity_key == "language"


@pytest.mark.parametrize(
    ("parts", "edges", "message"),
    [
        ({}, [], "there are no parts"),
        ({"A b": chat()}, [], r"parts\[A b\]: a part's name is made of"),
        ({"a": chat(), "b": voice()}, [Edge("a", "c")], "edge a to c: no part is called 'c'"),
        (
            {"a": chat(), "b": voice()},
            [Edge("a.wrte", "b")],
            "a has no terminal stage called 'wrte'; did you mean 'write'",
        ),
        ({"a": chat(), "b": chat()}, [Edge("a", "b", stream=True)], "b takes no input as a stream"),
        ({"a": chat(), "b": voice()}, [Edge("a", "b", "m:f", stream=True)], "chunks are not projected"),
        ({"a": chat(), "b": voice()}, [], "no path leads from the entry stage 'a-read' to 'b-say'"),
        ({"a": chat(), "b": chat()}, [Edge("a", "b"), Edge("b", "a", keep=True)], "is a cycle"),
        (
            {"a": chat(retries=1)},
            [],
            r"parts\[a\]\.retries: belongs to the whole pipeline; give it to compose\(retries",
        ),
        (
            {"a": chat(env_defaults={"A": "1"}), "b": voice(env_defaults={"A": "2"})},
            [Edge("a", "b")],
            "env_defaults.A: is '2'",
        ),
        ({"a": compose({"x": chat()}, [])}, [], "is composed itself"),
    ],
)
def test_what_cannot_be_composed_says_why(parts: dict[str, PipelineConfig], edges: list[Edge], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(parts, edges)


def test_a_source_with_several_terminal_stages_is_named_in_full() -> None:
    stages = [stage("read", next=["a", "b"]), stage("a", terminal=True), stage("b", terminal=True)]
    two = PipelineConfig(model_path="m", stages=stages)
    with pytest.raises(ConfigError, match=r"x has several terminal stages; write one as x\.a"):
        compose({"x": two, "y": voice()}, [Edge("x", "y")])
    config = compose({"x": two, "y": voice()}, [Edge("x.b", "y")])
    assert config.terminal_stages == ["x-a", "y-sound"]


def test_parts_without_interfaces_make_a_pipeline_without_one() -> None:
    config = compose({"a": chat(interface=None), "b": voice(interface=None)}, [Edge("a", "b")])
    assert config.interface is None


def fetch(model: str) -> str:
    return f"folder of {model}"


def choose(config: PipelineConfig, machine: Machine) -> Placement:
    """Place what it would place alone: by its own names."""
    assert config.resolved_entry_stage == "read"
    assert [each.name for each in config.stages] == ["read", "look", "think", "write"]
    assert (config.stage("think").wait_for, config.stage("write").terminal) == (["read", "look"], True)
    assert config.stage("think").factory_args == {"layers": 3}
    stages = [
        evolve(each, factory_args={"dtype": "float32"}) if each.name == "think" else each for each in config.stages
    ]
    return Placement(evolve(config, stages=stages, placement_fn=None), {"think": config.model_path})


def test_each_part_is_placed_and_fetched_by_its_own_functions() -> None:
    module = f"{__name__}:"
    first = chat(placement_fn=f"{module}choose", fetch_fn=f"{module}fetch")
    config = compose({"llm": first, "tts": voice(fetch_fn=f"{module}fetch")}, [Edge("llm", "tts")])
    stages = [evolve(each, factory_args={"layers": 3}) if each.name == "llm-think" else each for each in config.stages]
    placed = place(evolve(config, stages=stages), Machine(None))
    assert placed.notes == {"llm-think": "chat model"}
    assert placed.config.placement_fn is placed.config.parts["llm"].placement_fn is None
    think = placed.config.stage("llm-think")
    assert think == evolve(config.stage("llm-think"), factory_args={"dtype": "float32"})
    done = completed(placed.config)
    assert {name: part.model_path for name, part in done.parts.items()} == {
        "llm": "folder of chat model",
        "tts": "folder of voice model",
    }
    assert completed(done) == done
