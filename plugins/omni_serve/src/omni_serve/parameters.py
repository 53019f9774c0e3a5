"""The parameters of a request: OpenAI's names, our extensions, and what the pipeline declares, brought together.

A parameter that is not honoured is ignored (:mod:`omni_serve.ignored`), unless the answer would be wrong without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from omni_core.api import SEED, Interface, InvalidRequestError, Parameter, PipelineConfig, did_you_mean, shown
from omni_serve.errors import invalid
from omni_serve.ignored import check_unknown, ignore

LENGTHS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_new_tokens")
"""Names for the longest reply. A pipeline declares one of them."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "response_format": ({"type": "text"},),
    "text.format": ({"type": "text"},),
    "text.verbosity": ("medium",),
    "logit_bias": ({},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "reasoning_effort": ("none",),
    "reasoning.effort": ("none",),
    "verbosity": ("medium",),
    "parallel_tool_calls": (True,),
    "truncation": ("disabled",),
    "background": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "models": (),  # of OpenRouter: no misspelt `model`
    "stop": ([],),
    "task": ("transcribe",),
    "diarize": (False, "false"),
    "speed": (1, 1.0),  # of speech: no misspelt `seed`
}
"""Values that change nothing, by parameter: they are not even named where the pipeline does not know the parameter."""

_NEEDED = frozenset(
    {
        *(
            "n",
            "echo",
            "logprobs",
            "top_logprobs",
            "include.message.output_text.logprobs",
            "include.logprobs",
        ),
        *("response_format", "text.format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        *("structured_outputs", "json_schema", "grammar", "logit_bias", "seed", "stop", *LENGTHS),
        *("functions", "function_call", "web_search_options", "prompt", "background", "task", "diarize"),
        *("ref_audio", "references", "speaker_embedding"),
    }
)
"""Parameters without which an answer would be another one than was asked for, or would lack a part: they are honoured or refused."""

_OF_STAGES, _OF_MEDIA, _OF_TEMPLATE = "stage_sampling", "mm_processor_kwargs", "chat_template_kwargs"

_CONTAINERS = ("text", "reasoning", "include")
"""Parameters that hold several: an object's keys, or the texts of a list."""

BOOKKEEPING = frozenset(
    {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "client_metadata",
    }
)
"""Fields that OpenAI's platform uses to sort and cache requests; without effect on a reply there, too."""


def merged(extra: Mapping[str, Any] | None, body: Mapping[str, Any] | None, fields: Iterable[str]) -> dict[str, Any]:
    """Return the further keys of a request with those of its ``extra_body``, which clients of other languages send as it is.

    Args:
        extra: keys beside the declared ones.
        fields: the names of those.

    Raises:
        ApiError: 400, a key of ``extra_body`` contradicts the request, or belongs beside it.
    """
    found = dict(extra or {})
    for name, value in (body or {}).items():
        where = f"extra_body.{name}"
        if name in fields:
            raise invalid(f"{where}: give {name} beside extra_body, not in it", where, "invalid_value")
        if name in found and found[name] != value:
            raise invalid(
                f"{where}: is {shown(value)}, and {name} beside it {shown(found[name])}; give one",
                where,
                "invalid_value",
            )
        found[name] = value
    return found


@frozen
class Parameters:
    """The parameters of a request of the pipeline."""

    params: dict[str, Any]
    metadata: dict[str, Any]


class ParameterNames:
    """The names that a pipeline's interface, OpenAI and we have for parameters; made once per server.

    Args:
        role: whose parameters are given without a group; ``None``: those of the stage that writes the text, or of the only one.
    """

    def __init__(self, config: PipelineConfig, role: str | None = None) -> None:
        interface = config.interface or Interface()
        self._groups = {group.name: group for group in interface.groups}
        by_role = {group.role: group.name for group in reversed(interface.groups)}
        stages = {stage: by_role[role] for role, stage in interface.roles.items() if role in by_role}
        self._group_of = {**by_role, **stages, **{name: name for name in self._groups}}
        self._into = by_role.get(role) if role is not None else None
        group = self._groups[self._into] if self._into is not None else interface.plain_group
        plain = group.parameters if group is not None else []
        self._whole = {name for each in interface.params for name in each.names}
        seeded = any(each.name == SEED for each in interface.params) or any(
            each.name == SEED for group in interface.groups for each in group.parameters
        )
        self._params = {name for each in (*interface.params, *plain) for name in each.names if name != SEED}
        self._params |= {SEED} if seeded else set()
        self._metadata = {name for each in interface.metadata for name in each.names}
        self._speed = next(
            (group.name for group in interface.groups for each in group.parameters if "speed" in each.names), None
        )
        self._length = next((each for each in plain if any(name in LENGTHS for name in each.names)), None)

    def reads(self, name: str) -> bool:
        """Return if the pipeline honours a parameter of this name."""
        length = name in LENGTHS and self._length is not None
        return length or name in self._params or name in self._metadata or name in (_OF_STAGES, _OF_MEDIA)

    @property
    def paces(self) -> bool:
        """True if the pipeline speaks faster or slower itself: a group of its parameters has ``speed``."""
        return self._speed is not None

    def pace(self, params: dict[str, Any], speed: float, where: str = "speed") -> None:
        """Put the speed of speech into a request's parameters, if the pipeline honours it. ``where``: its path, for messages.

        Raises:
            ApiError: 400, the request has another one already.
        """
        if self._speed is None or speed == 1.0:
            return
        group = params.setdefault(self._speed, {})
        if group.setdefault("speed", speed) != speed:
            raise invalid(f"{where}: given twice, here and in {_OF_STAGES}", where, "invalid_value")

    def read(
        self, given: Mapping[str, Any], fields: Iterable[str] = (), neutral: Mapping[str, tuple[Any, ...]] = NEUTRAL
    ) -> Parameters:
        """Return the parameters of a request. ``None`` means: not given.

        Args:
            fields: what else the request may have.
            neutral: values that change nothing, by parameter.

        Raises:
            ApiError: 400, a parameter that the answer needs is not honoured by this pipeline, is misspelt, or given twice.
        """
        params: dict[str, Any] = {}
        metadata: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            if name in LENGTHS and self._length is not None:
                # All of them are bounds, so that the smallest keeps the others.
                most, group = checked_value(self._length, value, name), self._group(params)
                group[self._length.name] = min(most, group.get(self._length.name, most))
            elif name in self._whole or name == SEED:
                params[name] = value
            elif name in self._params:
                if self._group(params).setdefault(name, value) != value:
                    raise invalid(f"{name}: given twice, here and in {_OF_STAGES}", name, "invalid_value")
            elif name == _OF_STAGES:
                self._stages(value, params)
            elif name == _OF_MEDIA:
                self._media(value, metadata)
            elif name == _OF_TEMPLATE:
                self._template(value, params, given)
            elif name in self._metadata:
                if name in metadata:
                    raise invalid(f"{name}: given twice, here and in mm_processor_kwargs", name, "invalid_value")
                metadata[name] = value
            else:
                ignore_parameter(name, value, [*self._params, *self._metadata, *fields], neutral)
        return Parameters(params, metadata)

    def _group(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return where parameters are put that come without a group."""
        found: dict[str, Any] = params if self._into is None else params.setdefault(self._into, {})
        return found

    def _stages(self, value: Any, params: dict[str, Any]) -> None:
        """Take ``{"thinker": {...}}``: parameters by group, by stage or by role."""
        where = _OF_STAGES
        for name, group in _mapping(value, where, "a mapping of stages to their parameters").items():
            if name not in self._group_of:
                raise invalid(
                    f"{where}.{name}: no stage of this name has parameters{did_you_mean(name, self._group_of)}",
                    f"{where}.{name}",
                    "unknown_parameter",
                )
            _mapping(group, f"{where}.{name}", "a mapping of parameters")
            given = params.setdefault(self._group_of[name], {})
            for each in given.keys() & group.keys():
                raise invalid(
                    f"{where}.{name}.{each}: given twice, for two names of one stage",
                    f"{where}.{name}.{each}",
                    "invalid_value",
                )
            given.update(group)

    def _template(self, value: Any, params: dict[str, Any], given: Mapping[str, Any]) -> None:
        """Take the variables of a chat template that are parameters of the whole request, such as ``enable_thinking``."""
        for name, each in _mapping(value, _OF_TEMPLATE, "a mapping").items():
            if name not in self._whole:
                check_unknown(name, self._whole, _OF_TEMPLATE)
            elif given.get(name, each) not in (None, each):
                where = f"{_OF_TEMPLATE}.{name}"
                raise invalid(f"{where}: given twice, here and beside {_OF_TEMPLATE}", where, "invalid_value")
            elif each is not None:
                params[name] = each

    def _media(self, value: Any, metadata: dict[str, Any]) -> None:
        where = _OF_MEDIA
        for name, each in _mapping(value, where, "a mapping").items():
            if name not in self._metadata:
                check_unknown(name, self._metadata, where)
                continue
            if name in metadata:
                raise invalid(
                    f"{where}.{name}: given twice, here and beside {where}", f"{where}.{name}", "invalid_value"
                )
            metadata[name] = each


def ignore_parameter(
    name: str,
    value: Any,
    known: Iterable[str],
    neutral: Mapping[str, tuple[Any, ...]] = NEUTRAL,
    where: str = "",
) -> None:
    """Ignore a parameter that is not honoured.

    Args:
        known: the names of those that are. A name near to one that would be refused or is neutral is misspelt, too.
        neutral: values that change nothing, by parameter.
        where: the path of its object.

    Raises:
        ApiError: 400, it is one that the answer needs, or it is misspelt.
    """
    path = f"{where}.{name}" if where else name
    if value is None or name in BOOKKEEPING or _is_neutral(name, value, neutral):
        return
    if name in _CONTAINERS and isinstance(value, dict | list):
        for each in value:
            inner = value[each] if isinstance(value, dict) else True
            ignore_parameter(f"{name}.{each}" if isinstance(each, str) else name, inner, known, neutral, where)
    elif name in _NEEDED:
        others = " or ".join(repr(each) for each in neutral.get(name, ()))
        only = f"only {others} is supported here, is {shown(value)}" if others else "this pipeline does not honour it"
        raise invalid(f"{path}: {only}", path, "unsupported_value" if others else "unsupported_parameter")
    elif name in neutral:
        ignore(path)
    else:
        check_unknown(name, [*known, *_NEEDED, *neutral, _OF_STAGES, _OF_MEDIA, _OF_TEMPLATE], where)


def _mapping(value: Any, where: str, title: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid(f"{where}: must be {title}", where, "invalid_type")
    return value


def checked_value(parameter: Parameter, value: Any, name: str) -> Any:
    """Return a value; an error has the client's name for the parameter."""
    try:
        return parameter.check(value, name)
    except InvalidRequestError as error:
        raise invalid(str(error), name, "invalid_value") from None


def _is_neutral(name: str, value: Any, neutral: Mapping[str, tuple[Any, ...]]) -> bool:
    # 1 and 1.0 are one number of JSON; true is none.
    return any(isinstance(each, bool) == isinstance(value, bool) and each == value for each in neutral.get(name, ()))


def choices_of(interface: Interface, name: str) -> list[str]:
    """Return the declared choices of a key of the metadata."""
    found: Parameter | None = next((each for each in interface.metadata if name in each.names), None)
    return list(found.choices) if found is not None else []
