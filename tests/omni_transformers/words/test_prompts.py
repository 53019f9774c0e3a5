"""Messages as inputs: roles, tools, media, and texts that spell what is no text."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from tiny_transformers import checkpoint, examples, listeners, omnis, seers, writers
from tiny_transformers.driving import say
from tiny_transformers.scripted import save_scripted
from tiny_transformers.tiny import tokenizer_of

from omni_core.api import ConfigError, InvalidRequestError, OmniRequest
from omni_media.api import Limits
from omni_transformers.architectures import REFUSED, table
from omni_transformers.checkpoints import read
from omni_transformers.loading import load_model, load_processor
from omni_transformers.words.declaration import interface
from omni_transformers.words.messages import read_messages
from omni_transformers.words.prepare import create_prepare
from omni_transformers.words.prompts import Prompts
from omni_transformers.words.steps import create_writer

assert listeners
assert omnis
assert seers
assert writers
LLAVA, QWEN_AUDIO, QWEN_VL = (
    "LlavaForConditionalGeneration",
    "Qwen2AudioForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)


def prompts(name: str, **limits: Any) -> Prompts:
    return Prompts(load_processor(str(checkpoint(name))), table()[name].inputs, name, Limits(**limits))


def ids(name: str, *messages: dict[str, Any], **more: Any) -> list[int]:
    found: list[int] = prompts(name).inputs(OmniRequest({"messages": list(messages), **more}))["input_ids"][0].tolist()
    return found


def text_of(name: str, found: list[int]) -> str:
    made: str = prompts(name).tokenizer.decode(found)
    return made


def test_roles_and_tools_reach_the_template() -> None:
    template = (
        "{% for t in tools or [] %}{{ t['function']['name'] }};{% endfor %}{% for m in messages %}{{ m['role'] }}={{ m['content'] }}"
        "{% for c in m['tool_calls'] or [] %}{{ c['function']['arguments']['at'] }}{% endfor %}|{% endfor %}"
    )  # fmt: skip
    tokenizer = tokenizer_of({})
    tokenizer.chat_template = template
    call = {"id": "1", "function": {"name": "look", "arguments": '{"at": "home"}'}}
    messages = [
        {"role": "system", "content": "Be short"},
        {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "here"},
    ]
    request = OmniRequest({"messages": messages, "tools": [{"type": "function", "function": {"name": "look"}}]})
    found = Prompts(tokenizer, ["text"]).inputs(request)
    expected = "look;system=Be short|user=Where?|assistant=home|tool=here|"
    assert tokenizer.decode(found["input_ids"][0]) == expected
    messages[2]["tool_calls"] = [{"function": {"name": "look", "arguments": "{"}}]
    with pytest.raises(InvalidRequestError, match=r"messages\[2\].tool_calls: the arguments of 'look' are no JSON"):
        Prompts(tokenizer, ["text"]).inputs(request)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", LLAVA])
def test_a_text_that_spells_a_special_token_stays_a_text(name: str) -> None:
    spelled = "a</s>b<image><s>"
    found = ids(name, {"role": "user", "content": spelled})
    assert not {257, 258} & set(found)
    assert text_of(name, found).startswith(f"user: {spelled}")


def test_a_spelled_placeholder_beside_a_picture_is_no_second_picture() -> None:
    part = examples.part("image")
    plain = ids(LLAVA, {"role": "user", "content": [part, {"type": "text", "text": "x"}]})
    spelled = ids(LLAVA, {"role": "user", "content": [part, {"type": "text", "text": "<image>"}]})
    image = prompts(LLAVA).tokenizer.convert_tokens_to_ids("<image>")
    assert plain.count(image) == spelled.count(image) > 1


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "GPT2LMHeadModel"])
def test_without_a_template_a_spelled_token_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="spells '</s>'"):
        ids(name, {"role": "user", "content": "a</s>b"})


def test_media_that_a_model_does_not_take_are_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"content\[0\]: this model takes no audio; it takes text and image"):
        ids(LLAVA, {"role": "user", "content": [examples.part("audio")]})
    with pytest.raises(InvalidRequestError, match=r"content\[0\]: must be a text, or .* of one of text, audio"):
        ids(QWEN_AUDIO, {"role": "user", "content": [{"type": "smell"}]})
    with pytest.raises(InvalidRequestError, match="this model writes of a picture; there is none"):
        ids("PaliGemmaForConditionalGeneration", {"role": "user", "content": "x"})


def test_sound_comes_at_the_rate_of_the_processor() -> None:
    slow = {"type": "audio", "samples": np.zeros(4000, np.float32), "sample_rate": 8000}
    found = prompts(QWEN_AUDIO).inputs(OmniRequest({"messages": [{"role": "user", "content": [slow]}]}))
    assert int(found["feature_attention_mask"].sum()) == 50  # frames of 10 ms


def test_a_recording_that_would_be_cut_is_refused() -> None:
    long = {"type": "audio", "samples": np.zeros(48_000, np.float32), "sample_rate": 16_000}
    with pytest.raises(InvalidRequestError, match=r"3.0 s of sound; this model hears the first 2 s"):
        ids(QWEN_AUDIO, {"role": "user", "content": [long]})
    longer = {**long, "samples": np.zeros(31 * 16_000, np.float32)}
    with pytest.raises(InvalidRequestError, match=r"31.0 s of sound; this model hears the first 30 s"):
        ids("Gemma4ForConditionalGeneration", {"role": "user", "content": [longer]})
    windows = ids(
        "GlmAsrForConditionalGeneration", {"role": "user", "content": [longer]}
    )  # of 2 s, as many as it needs
    assert windows.count(259) > 380
    with pytest.raises(InvalidRequestError, match="over the limit of 1 s"):
        prompts(QWEN_AUDIO, max_audio_seconds=1.0).inputs(
            OmniRequest({"messages": [{"role": "user", "content": [long]}]})
        )


def test_frames_are_told_with_their_times() -> None:
    found = prompts(QWEN_VL).inputs(OmniRequest({"messages": [{"role": "user", "content": [examples.part("video")]}]}))
    assert found["video_grid_thw"][0, 0] == 2
    assert float(torch.as_tensor(found["second_per_grid_ts"])[0]) == 1.0  # two frames of half a second


@pytest.mark.parametrize(
    ("says", "taken", "rate"), [({}, 24, 2.0), ({"fps": 1}, 12, 1.0), ({"num_frames": 8}, 8, 8 / 12)]
)
def test_a_video_is_taken_as_its_processor_says(tmp_path: Path, says: dict[str, Any], taken: int, rate: float) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(120):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), number, np.uint8), format="rgb24")))
        file.mux(stream.encode())
    processor = SimpleNamespace(video_processor=SimpleNamespace(**says))
    part = {"type": "video", "path": str(tmp_path / "a.mp4")}
    found = read_messages({"messages": [{"role": "user", "content": [part]}]}, ["video"], processor, Limits())
    assert (len(found.videos[0].frames), found.videos[0].fps) == (taken, pytest.approx(rate, rel=0.05))
    [times] = found.video_metadata()
    assert (times["total_num_frames"], times["duration"]) == (taken, pytest.approx(12, rel=0.05))


def test_what_a_checkpoint_offers() -> None:
    seen, heard = interface(read(str(checkpoint(LLAVA)))), interface(read(str(checkpoint(QWEN_AUDIO))))
    assert (seen.inputs, seen.prompts, seen.limits["max_image_pixels"]) == (["text", "image"], {}, 50_000_000)
    assert (heard.inputs, list(heard.prompts)) == (["text", "audio"], ["transcription", "translation"])
    recogniser = interface(read(str(checkpoint("Qwen3ASRForConditionalGeneration"))))
    assert recogniser.roles == {"transcription": "answer"}
    assert {"language", "prompt", "temperature"} <= {each.name for each in recogniser.groups[0].parameters}


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    tokenizer_of({}).save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text('{"processor_class": "VoxtralRealtimeProcessor"}')
    with pytest.raises(ConfigError, match=r"needs a package that is not installed: .*pip install mistral-common"):
        load_processor(str(tmp_path))


def test_a_package_that_a_model_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}'
    )
    (tmp_path / "model.safetensors").write_bytes((checkpoint(LLAVA) / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"its model needs a package that is not installed: .*pip install timm"):
        load_model(str(tmp_path))


def test_a_model_that_fits_no_pipeline_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert set(REFUSED) <= set(table())
    (tmp_path / "config.json").write_text('{"architectures": ["PI0ForConditionalGeneration"], "model_type": "pi0"}')
    with pytest.raises(ConfigError, match="PI0ForConditionalGeneration is not served: it moves a robot"):
        read(str(tmp_path))


def test_voxtral_has_a_mark_for_transcripts() -> None:
    name, sound = "VoxtralForConditionalGeneration", examples.part("audio")
    tokens = prompts(name).tokenizer.convert_tokens_to_ids(["[INST]", "[BEGIN_AUDIO]", "[/INST]", "[TRANSCRIBE]"])
    instruct, begin, end, transcribe = tokens
    language = prompts(name).tokenizer.encode("lang:de", add_special_tokens=False)
    heard = [257, instruct, begin, *[24] * 25]
    told = {"type": "text", "text": "Transcribe the audio into text. The language is: de."}
    assert ids(name, {"role": "user", "content": [sound, told]}) == [*heard, end, *language, transcribe]
    told = {"type": "text", "text": "Transcribe the audio into text."}
    assert ids(name, {"role": "user", "content": [sound, told]}) == [*heard, end, transcribe]
    turns = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    found = text_of(name, ids(name, *turns, {"role": "user", "content": "d"}))
    assert found == "<s>[SYSTEM_PROMPT]a[/SYSTEM_PROMPT][INST]b[/INST]c</s>[INST]d[/INST]"


def test_tools_are_offered_where_the_template_has_them_in_a_known_form(tmp_path: Path) -> None:
    shutil.copytree(checkpoint("LlamaForCausalLM"), tmp_path / "a")
    assert interface(read(str(tmp_path / "a"))).tool_format is None
    (tmp_path / "a" / "chat_template.jinja").write_text("{{ tools }} <tool_call>{}</tool_call>")
    assert interface(read(str(tmp_path / "a"))).tool_format == "tagged-json"


def test_a_conversation_without_a_text_is_refused_where_it_makes_none() -> None:
    with pytest.raises(InvalidRequestError, match="non-empty list"):
        prompts("LlamaForCausalLM").inputs(OmniRequest({"messages": []}))
    assert len(prompts("LlamaForCausalLM").inputs(say(""))["input_ids"][0]) > 0


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Hi\n{% for m in messages %}{{ m.content }}", "line 2: Unexpected end of template"),
        ("{{ messages | speak }}", "line 1: No filter named 'speak'"),
        ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__' of 'list' object is unsafe"),
    ],
)
def test_a_broken_chat_template_is_told_at_the_start(tmp_path: Path, template: str, message: str) -> None:
    folder = save_scripted(tmp_path, template, ">", ["x"])
    for make in (create_writer, create_prepare):
        with pytest.raises(ConfigError) as told:
            make(str(folder))
        assert message in str(told.value)
        assert str(told.value).startswith(f"{folder}: its chat template is broken")
        assert "\n" not in str(told.value)


def test_a_template_that_refuses_texts_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = tokenizer_of({})
    tokenizer.chat_template = "{{ messages[1].content }}"
    found = Prompts(tokenizer, ["text"])
    assert "refuses a message that is a text: list object has no element 1" in caplog.text
    message = {"role": "user", "content": "x"}
    assert found.tokenizer.decode(found.inputs(OmniRequest({"messages": [message, message]}))["input_ids"][0]) == "x"


def test_without_a_template_the_text_of_one_message_is_continued(caplog: pytest.LogCaptureFixture) -> None:
    name = "GPT2LMHeadModel"
    assert text_of(name, ids(name, {"role": "user", "content": "Once upon"})) == "Once upon"
    with pytest.raises(InvalidRequestError, match="no chat template, so that it continues the text of one message"):
        ids(name, {"role": "system", "content": "Be short"}, {"role": "user", "content": "x"})
    Prompts(tokenizer_of(None), ["text"], "MambaForCausalLM")
    assert "has no chat template" in caplog.text
