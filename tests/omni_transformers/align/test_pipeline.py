"""A voice with an aligner behind it: what it declares, and the parts that it tells."""

from __future__ import annotations

from tiny_transformers import checkpoint, frame_recognisers, speakers
from tiny_transformers.driving import outputs, replies, running, say, send, write

from omni_cli.deploy.budgets import problems
from omni_core.api import WORD_TIMES, OmniRequest, TextChunk
from omni_core.config.placement import plan
from omni_transformers.pipeline import transformers
from omni_transformers.speak.stage import create_speaker

assert frame_recognisers and speakers  # noqa: PT018
TEXT = "Hello there, this is one. And this is the second sentence, which is longer than that."


def test_the_interface_declares_what_the_aligner_adds() -> None:
    folder, aligner = str(checkpoint("SpeechT5ForTextToSpeech")), str(checkpoint("Wav2Vec2ForCTC"))
    plain, aligned = transformers(folder), transformers(folder, aligner=aligner)
    assert plain.interface is not None
    assert aligned.interface is not None
    assert (plain.interface.word_times, plain.interface.params) == (False, [])
    assert (aligned.interface.word_times, aligned.interface.params) == (True, [WORD_TIMES])
    assert [stage.terminal for stage in aligned.stages] == [False, True]
    assert len({stage.process for stage in aligned.stages}) == 2
    assert not problems(plan(transformers(folder, aligner=aligner, gpu=0))), "what shares a device has a budget"


def test_a_voice_tells_the_parts_that_it_has_spoken() -> None:
    folder = str(checkpoint("SpeechT5ForTextToSpeech"))
    arguments = transformers(folder, aligner=str(checkpoint("Wav2Vec2ForCTC"))).stages[0].factory_args
    with running(create_speaker(folder, **arguments)) as scheduler:
        [(whole, result)] = replies(scheduler, [say(TEXT, speech={"seed": 3})])
        send(scheduler, "r", OmniRequest({"messages": []}, {"speech": {"seed": 3}}))
        write(scheduler, "r", *(TextChunk(each) for each in TEXT))
        *streamed, _ = outputs(scheduler, ["r"])["r"]
    with running(create_speaker(folder, **{**arguments, "tells_parts": False})) as scheduler:
        [(plain, same)] = replies(scheduler, [say(TEXT, speech={"seed": 3})])
    first, second = TEXT[:25], TEXT[26:]
    assert [each.get("said", "") if isinstance(each, dict) else len(each.samples) for each in whole] == [
        len(plain[0].samples), first, len(plain[1].samples), second,
    ]  # fmt: skip
    assert [each for each in streamed if isinstance(each, dict)] == [{"said": first}, {"said": second}]
    assert result.samples.tobytes() == same.samples.tobytes()
