"""A pipeline of plain functions for the tests of the server: it says back what it is told, as text and as a tone per word."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from typing import Any

import numpy as np
from attrs import evolve

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import InvalidRequestError
from omni_core.interface import SPEECH, TEXT, WORD_TIMES, Interface, Parameter, ParameterGroup
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult, ReasoningChunk, TextChunk, TextResult, Word
from omni_core.structured import structured_parameter

RATE = 24_000

_SAMPLING = [
    Parameter("temperature", "number", "sampling temperature", 0.0, 0, 2),
    Parameter("max_new_tokens", "integer", "longest reply", 1000, 1, 10_000, aliases=["max_tokens"]),
    Parameter("stop", "strings", "ends the text", maximum=4),
    Parameter("seed", "integer", "seed", minimum=0, maximum=2**31),
]
INTERFACE = Interface(
    roles={TEXT: "write", SPEECH: "speak"},
    inputs=["text", "image", "audio", "video", "reference"],
    outputs=["text", "audio"],
    groups=[
        ParameterGroup("writer", TEXT, "text", _SAMPLING),
        ParameterGroup("speaker", SPEECH, "speech", _SAMPLING[:1]),
    ],
    params=[Parameter("enable_thinking", "boolean", "it thinks first"), WORD_TIMES],
    metadata=[
        Parameter("speaker", "string", "the voice", choices=["low", "high"]),
        Parameter("use_audio_in_video", "boolean", "sound of videos", False),
        Parameter("pause", "number", "seconds between two words, for tests", 0.0, 0, 100),
    ],
    voices=["low", "high"],
    sample_rate=RATE,
    word_times=True,
    tool_format="tagged-json",
    tool_choice=True,
    reasoning=True,
    reference_text=True,
    prompts={"transcription": "Write down what is said.", "speech": "{text}"},
    warmup=[{"inputs": {"messages": [{"role": "user", "content": "warm"}]}, "modalities": ["text"]}],
)

HELD = evolve(
    INTERFACE,
    groups=[
        evolve(
            INTERFACE.groups[0], parameters=[*_SAMPLING, structured_parameter("json_object", "json_schema", "choice")]
        ),
        INTERFACE.groups[1],
    ],
)
"""Its text is the first that a structure allows, where a request has one."""

PACING = evolve(
    INTERFACE,
    groups=[
        INTERFACE.groups[0],
        ParameterGroup(
            "speaker", SPEECH, "speech", [*_SAMPLING[:1], Parameter("speed", "number", "of speech", 1.0, 0.25, 4)]
        ),
    ],
)
"""It speaks faster or slower itself: a faster word is cut off."""

READING = evolve(
    INTERFACE,
    outputs=[*INTERFACE.outputs, SPEECH],
    groups=[INTERFACE.groups[0], ParameterGroup("speaker", SPEECH, "speech", [_SAMPLING[0], _SAMPLING[3]])],
    prompts={},
)
"""It speaks given texts as they are."""


def understand(payload: StagePayload) -> dict[str, Any]:
    """Return the words of the reply. ``fail`` and ``refuse`` are commands of the tests."""
    inputs, request = payload.request.inputs, payload.request
    texts, media = [], []
    for message in inputs["messages"]:
        content = message["content"]
        if thoughts := message.get("reasoning_content"):
            texts.append(("thought", thoughts))
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                texts.append((message["role"], part["text"]))
            else:
                media.append(f"{part['type']}:{len(part.get('data') or part['frames'])}")
    last = texts[-1][1] if texts else ""
    if last == "fail":
        raise RuntimeError("told to fail")
    if last == "refuse":
        raise InvalidRequestError("messages[0].content: refused")
    words = [*last.split(), *media]
    if last == "history":
        words = [f"{role}={text}" for role, text in texts[:-1]]
    if last == "params":
        words = [json.dumps({"params": request.params, "metadata": request.metadata}, sort_keys=True)]
    if inputs.get("tools"):
        words = with_calls(last, inputs["tools"], inputs.get("tool_choice"))
    if (structured := request.params.get("writer", {}).get("structured")) is not None:
        [(kind, value)] = structured.items()
        schema = value["schema"] if kind == "json_schema" else {"type": "object"}
        words = [value[0] if kind == "choice" else json.dumps(first_of(schema, schema.get("$defs", {})))]
    if inputs.get("references"):
        words.append(f"like:{inputs['references'][0]['text']}")
    prompt = sum(len(text.split()) for _, text in texts)
    return {"words": words, "prompt_tokens": prompt}


def with_calls(last: str, tools: list[dict[str, Any]], choice: str | None) -> list[str]:
    """Return the words of a reply with calls; ``last`` may be a command. It knows its tools from the prompt, as a model does."""
    names = [tool["function"]["name"] for tool in tools]
    if choice is not None:
        called = tools[0 if choice == "*" else names.index(choice)]["function"]
        schema = called.get("parameters", {})
        arguments = first_of(schema, schema.get("$defs", {})) if schema.get("required") else {"forced": choice}
        return [call_of(called["name"], arguments)]
    if last.startswith("shown"):
        return [json.dumps(tools, sort_keys=True)]
    if last == "broken":
        return ["So:", '<tool_call>{"name": ', names[0]]
    if last.startswith("no call"):
        return ["None", "is", "needed."]
    called = {"both": [names[0], names[-1]], "another": ["another"]}.get(last, [names[0]])
    return ["So:", *(call_of(name, {"text": last}) for name in called)]


def first_of(schema: dict[str, Any], defined: dict[str, Any]) -> Any:
    """Return a value of a JSON schema, as far as clients in the tests write schemas."""
    if "$ref" in schema:
        return first_of(defined[schema["$ref"].rpartition("/")[2]], defined)
    if "anyOf" in schema:
        return first_of(schema["anyOf"][0], defined)
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    if schema.get("type") == "array":
        return [first_of(schema["items"], defined)]
    if schema.get("type") == "object":
        return {name: first_of(each, defined) for name, each in schema.get("properties", {}).items()}
    return {"string": "one", "integer": 3, "number": 2.5, "boolean": True}[schema["type"]]


def call_of(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def write(payload: StagePayload) -> Generator[TextChunk, None, TextResult]:
    """Stream the words."""
    params = payload.request.params.get("writer", {})
    words = payload.data["words"]
    most = params.get("max_new_tokens", 1000)
    said, pause = "", payload.request.metadata.get("pause", 0.0)
    reason = "stop" if len(words) <= most else "length"
    thoughts = ["I am ", "asked"] if payload.request.params.get("enable_thinking") else []
    for thought in thoughts:
        yield ReasoningChunk(thought)
    for index, word in enumerate(words[:most]):
        piece = word if not index else f" {word}"
        if any(stop in said + piece for stop in params.get("stop", ())):
            break
        if pause:
            time.sleep(pause)
        if word == "implode":
            raise RuntimeError("told to implode")
        said += piece
        yield TextChunk(piece)
    usage = {"prompt_tokens": payload.data["prompt_tokens"], "completion_tokens": len(words[:most])}
    if thoughts:
        usage["reasoning_tokens"] = len(thoughts)
    return TextResult(said, [], reason, usage, reasoning="".join(thoughts))


def tone(word: str, speaker: str | None = None) -> np.ndarray:
    """Return 0.1 s of a tone and an odd number of samples more, so that borders of pieces fall anywhere."""
    pitch = 220 * (2 if speaker == "high" else 1) * (1 + len(word) % 5)
    count = RATE // 10 + len(word)
    swell = np.sin(np.pi * np.arange(count) / count)  # it begins and ends in silence: neighbours meet without a click
    return (0.5 * swell * np.sin(2 * np.pi * pitch * np.arange(count) / RATE)).astype(np.float32)


def speak(payload: StagePayload) -> Generator[AudioChunk, None, AudioResult]:
    """Stream a tone for each word. If the words are asked for, those of ``late`` tones are told behind the next, or by the result."""
    pieces, pause = [], payload.request.metadata.get("pause", 0.0)
    times, told = list[Word](), 0
    for word in payload.data["words"]:
        if word.startswith("<tool_call>"):
            break  # calls are not spoken
        pieces.append(tone(word, payload.request.metadata.get("speaker")))
        if (speed := payload.request.params.get("speaker", {}).get("speed")) is not None:
            pieces[-1] = pieces[-1][: int(len(pieces[-1]) / speed)]
        if word == "unequal":
            pieces[-1] = pieces[-1] * np.float32(time.time() % 1)
        if pause:
            time.sleep(pause)
        if word == "explode":
            raise RuntimeError("told to explode")
        if payload.request.params.get("timestamps") == "word":
            start = times[-1].end if times else 0.0
            times.append(Word(word, start, start + len(pieces[-1]) / RATE))
        late = word == "late"
        yield AudioChunk(pieces[-1], RATE, words=[] if late else times[told:])
        told = told if late else len(times)
    notices = ["it was cut"] if "cut" in payload.data["words"] else []
    return AudioResult(
        np.concatenate(pieces) if pieces else np.zeros(0, np.float32), RATE, notices=notices, words=times
    )


def route(request_id: str, payload: StagePayload) -> list[str]:
    """Choose the stages that the wanted modalities need."""
    return terminals(payload.request)


def terminals(request: OmniRequest) -> list[str]:
    wanted = request.modalities or ["text", "audio"]
    return [stage for stage, *kinds in (("write", "text"), ("speak", "audio", "speech")) if {*kinds} & {*wanted}]


def speaking_pipeline(interface: Interface = INTERFACE) -> PipelineConfig:
    """Return the pipeline, in one process."""
    stages = [
        StageConfig(name="understand", process="p", factory="serve_stages:understand", next=["write", "speak"],
                    route_fn="serve_stages:route"),
        StageConfig(name="write", process="p", factory="serve_stages:write", terminal=True),
        StageConfig(name="speak", process="p", factory="serve_stages:speak", terminal=True),
    ]  # fmt: skip
    return PipelineConfig(
        model_path="none",
        name="tones",
        stages=stages,
        terminal_stages_fn="serve_stages:terminals",
        interface=interface,
    )
