"""The tokens of an answer in every form of OpenAI's, those of sound apart."""

from __future__ import annotations

from omni_serve import usage

COUNTED = {"prompt_tokens": 10, "prompt_audio_tokens": 4, "completion_tokens": 3, "completion_audio_tokens": 25}


def test_tokens_of_sound_are_a_part_of_the_whole() -> None:
    chat = usage.of_chat(COUNTED)
    assert (chat["prompt_tokens"], chat["completion_tokens"], chat["total_tokens"]) == (10, 28, 38)
    assert chat["prompt_tokens_details"]["audio_tokens"] == 4
    assert (chat["completion_tokens_details"]["audio_tokens"], chat["completion_tokens_details"]["text_tokens"]) == (
        25,
        3,
    )
    turn = usage.of_turn(COUNTED)
    assert (turn["input_tokens"], turn["output_tokens"], turn["total_tokens"]) == (10, 28, 38)
    assert turn["input_token_details"] == {"audio_tokens": 4, "text_tokens": 6, "cached_tokens": 0}
    assert turn["output_token_details"] == {"audio_tokens": 25, "text_tokens": 3}


def test_a_transcript_tells_what_its_tokens_are_of() -> None:
    assert usage.of_transcript({"prompt_tokens": 10, "prompt_audio_tokens": 4, "completion_tokens": 3}) == {
        "type": "tokens",
        "input_tokens": 10,
        "output_tokens": 3,
        "total_tokens": 13,
        "input_token_details": {"audio_tokens": 4, "text_tokens": 6},
    }


def test_the_usage_of_a_transcript_is_its_seconds_where_no_tokens_are_counted() -> None:
    assert usage.of_transcript({}, 2.5) == {"type": "duration", "seconds": 2.5}
    assert usage.of_transcript({"completion_tokens": 3}, 2.5)["type"] == "tokens"


def test_what_is_not_counted_is_nothing() -> None:
    assert usage.of_tokens({}) == {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    assert usage.of_response({})["output_tokens_details"] == {"reasoning_tokens": 0}
