"""One recogniser for several requests: what each of them reports, its random numbers, and its recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import StoppingCriteria

from omni_core.api import InvalidRequestError, OmniRequest, ParameterGroup, StagePayload
from omni_media.api import Limits, MediaSource, Samples, sound

Report = Callable[[Any], None]


def own_random(report: Report, seed: int, device: str) -> Report:
    """Return ``report`` for a request that draws from PyTorch's random numbers: other requests draw none of its own in between.

    What the library samples is then the same as alone after ``torch.manual_seed(seed)``.
    """
    torch.manual_seed(seed)
    devices = [torch.device(device).index or 0] if device.startswith("cuda") else []

    def reported(value: Any) -> None:
        with torch.random.fork_rng(devices):
            report(value)

    return reported


class EachToken(StoppingCriteria):
    """Calls a function with the ids after each token; it never ends the text."""

    def __init__(self, told: Callable[[torch.Tensor], None]) -> None:
        self._told = told

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._told(input_ids)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def recording(request: OmniRequest, rate: int, seconds: float) -> Samples:
    """Return the recording of a request, float32 ``[n]``.

    Args:
        rate: in Hz.
        seconds: the longest one.

    Raises:
        InvalidRequestError: there is none or several, or it cannot be read; RequestTooLargeError: it is longer.
    """
    messages = request.inputs.get("messages") if isinstance(request.inputs, dict) else None
    content = messages[-1].get("content") if isinstance(messages, list) and messages else None
    parts = [each for each in content or () if isinstance(each, dict)] if isinstance(content, list) else []
    found = [(number, each) for number, each in enumerate(parts) if each.get("type") == "audio"]
    if len(found) != 1 or len(parts) != 1:
        raise InvalidRequestError(
            "messages: this model writes down one recording: send one audio part and nothing else"
        )
    [(number, part)] = found
    place = f"messages[{len(messages) - 1}].content[{number}]"  # type: ignore[arg-type]
    limits = Limits(max_audio_seconds=seconds, max_request_samples=round(seconds * 2 * 48_000))
    return sound(MediaSource("audio", part, place), rate, limits)


def asked_of(payload: StagePayload, group: ParameterGroup) -> dict[str, Any]:
    """Return the parameters of a request, with the defaults of those that are not given; of choices, as they are declared."""
    given = payload.request.params.get(group.name, {})
    found = {}
    for each in group.parameters:
        value = each.default if given.get(each.name) is None else given[each.name]
        found[each.name] = next((one for one in each.choices if one.casefold() == str(value).casefold()), value)
    return found
