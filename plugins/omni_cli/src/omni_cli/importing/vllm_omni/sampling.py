"""The rule for ``default_sampling_params``: what requests have that do not say otherwise, under our names."""

from __future__ import annotations

import json
from typing import Any

from omni_cli.importing.report import Outcome, holds, refuse, take
from omni_cli.importing.vllm_omni.context import Place, section
from omni_core.api import InvalidRequestError, Parameter, did_you_mean

NAMES = {
    "max_tokens": "max_new_tokens",
    "stop_token_ids": "stop_ids",
    **{
        name: name
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", "ignore_eos")
    },
}
"""Our names of their parameters."""

NEUTRAL: dict[str, list[Any]] = {
    "top_p": [1],
    "top_k": [-1, 0],
    "min_p": [0],
    "repetition_penalty": [1],
    "presence_penalty": [0],
    "frequency_penalty": [0],
    "min_tokens": [0],
    "ignore_eos": [False],
    "stop": [[]],
    "stop_token_ids": [[]],
    "n": [1],
    "bad_words": [[]],
    "skip_special_tokens": [True],
    "spaces_between_special_tokens": [True],
    "include_stop_str_in_output": [False],
    "extra_args": [{}],
}
"""Values that do nothing."""

OTHERS = (
    "logprobs",
    "prompt_logprobs",
    "logit_bias",
    "allowed_token_ids",
    "truncate_prompt_tokens",
    "output_kind",
    "detokenize",
)
"""Further parameters of vLLM's."""

DIFFUSION = ("num_inference_steps", "guidance_scale", "height", "width", "output_type", "negative_prompt", "num_frames")


def sampling(place: Place) -> Outcome:
    """Return the outcome of one default sampling parameter."""
    keys = place.setting.keys
    if len(keys) == 1:
        return holds("no defaults") if place.value in ({}, None) else refuse("must map names of parameters to values")
    name, value = keys[1], place.value
    group = place.context.target.group(place.stage)
    if name in DIFFUSION:
        return refuse(f"{name} is for a diffusion stage; {place.stage} is none")
    if name not in NAMES and name not in NEUTRAL and name not in OTHERS:
        return refuse(f"vllm has no sampling parameter of this name{did_you_mean(name, [*NAMES, *NEUTRAL, *OTHERS])}")
    if len(keys) > 2:
        return refuse(
            "there are no such parameters of a class of vLLM's" if name == "extra_args" else "must be a single value"
        )
    if value is None:
        return holds("null: not set")
    if _neutral(name, value) and (group is None or NAMES.get(name) not in _names(group.parameters)):
        return holds("this value does nothing")
    if name == "detokenize":
        return _detokenize(place)
    known = [] if group is None else group.parameters
    parameter = next((each for each in known if each.name == NAMES.get(name)), None)
    if parameter is None and not {"max_new_tokens", "temperature"} & {*_names(known)}:
        return holds(f"{place.stage} chooses no tokens, here as there: the value has no effect")
    if group is None or parameter is None:
        return refuse(f"requests have no such parameter for {place.stage}; they have: {', '.join(_names(known))}")
    if name == "top_k" and value == -1:
        value = 0
    try:
        value = parameter.check(value, name)
    except InvalidRequestError as error:
        return refuse(str(error))
    return take(((*section(place.setting.platform), "defaults", "params", group.name, parameter.name), value))


def _detokenize(place: Place) -> Outcome:
    if place.value is False and place.context.target.interface.roles.get("text") == place.stage:
        return refuse("the text of an answer is always text; ask for ids with `return_codes` or leave it out")
    return holds("text is decoded where there is text")


def _neutral(name: str, value: Any) -> bool:
    return any(
        json.dumps(value, default=str) == json.dumps(each) or (type(value) in (int, float) and value == each)
        for each in NEUTRAL.get(name, [])
        if isinstance(each, bool) == isinstance(value, bool)
    )


def _names(parameters: list[Parameter]) -> list[str]:
    return [each.name for each in parameters]
