"""The tokens of an answer, as a pipeline counts them, in the forms of OpenAI's APIs.

A pipeline counts ``prompt_tokens`` and ``completion_tokens`` of text, ``prompt_audio_tokens`` as a part of the former,
``reasoning_tokens`` as one of the latter, and ``completion_audio_tokens`` beside it. What it does not count is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _counts(usage: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Return the tokens of the prompt, those of sound in it, the tokens of the answer, and those of sound in it."""
    spoken = usage.get("completion_audio_tokens", 0)
    answer = usage.get("completion_tokens", 0) + spoken
    return usage.get("prompt_tokens", 0), usage.get("prompt_audio_tokens", 0), answer, spoken


def of_chat(usage: Mapping[str, int]) -> dict[str, Any]:
    """Return the usage of a chat."""
    prompt, heard, answer, spoken = _counts(usage)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"audio_tokens": heard, "cached_tokens": 0},
        "completion_tokens_details": {
            "audio_tokens": spoken,
            "text_tokens": answer - spoken,
            "reasoning_tokens": usage.get("reasoning_tokens", 0),
        },
    }


def of_completion(usage: Mapping[str, int]) -> dict[str, int]:
    """Return the usage of a completion."""
    prompt, _, answer, _ = _counts(usage)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def of_tokens(usage: Mapping[str, int]) -> dict[str, int]:
    """Return the usage of speech, which the others with ``input_tokens`` begin with."""
    prompt, _, answer, _ = _counts(usage)
    return {"input_tokens": prompt, "output_tokens": answer, "total_tokens": prompt + answer}


def of_response(usage: Mapping[str, int]) -> dict[str, Any]:
    """Return the usage of a response."""
    return {
        **of_tokens(usage),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens", 0)},
    }


def of_transcript(usage: Mapping[str, int], seconds: float | None = None) -> dict[str, Any]:
    """Return the usage of a transcript: its tokens; the seconds of its recording, if they are given and the pipeline counts no tokens."""
    prompt, heard, answer, _ = _counts(usage)
    if seconds and not prompt + answer:
        return {"type": "duration", "seconds": seconds}
    details = {"audio_tokens": heard, "text_tokens": prompt - heard}
    return {"type": "tokens", **of_tokens(usage), "input_token_details": details}


def of_turn(usage: Mapping[str, int]) -> dict[str, Any]:
    """Return the usage of a response in a realtime session."""
    prompt, heard, answer, spoken = _counts(usage)
    return {
        **of_tokens(usage),
        "input_token_details": {"audio_tokens": heard, "text_tokens": prompt - heard, "cached_tokens": 0},
        "output_token_details": {"audio_tokens": spoken, "text_tokens": answer - spoken},
    }
