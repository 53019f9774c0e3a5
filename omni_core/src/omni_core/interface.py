"""The declaration of what a pipeline offers: roles of its stages, request parameters, modalities, limits and voices.

A pipeline's component and its config carry an :class:`Interface`. The command line makes its flags from it, requests are checked
against it at admission, and stages may check their own parameters by the same :class:`Parameter` objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import field, frozen

from omni_core.errors import ConfigError, InvalidRequestError, did_you_mean, shown

TEXT, SPEECH, VOCODER, TRANSCRIPTION = "text", "speech", "vocoder", "transcription"
"""Roles that clients know: the stage that writes text, the one that chooses the codes of speech, the one that makes the sound, and the one
that writes recordings down, which answers with a :class:`~omni_core.protocol.outputs.Transcript`. A stage that makes sound from text by
itself has the role :data:`SPEECH` alone. A pipeline may name further roles."""

SEED = "seed"
"""At the top level of a request's ``params`` it seeds every group that has a parameter of this name and was not given its own."""

STRUCTURED = "structured"
"""The parameter of the text role that says what its text must be; see :mod:`omni_core.structured`."""

VOICE = "speaker"
"""The key of a request's ``metadata`` that names the voice, of pipelines that have a choice of voices."""

TASKS = ("transcribe", "translate")
"""Values of the parameter ``task`` of the transcription role. ``translate``: into English."""

TIMESTAMPS = ("none", "segment", "word")
"""Values of its parameter ``timestamps``: ``word`` has segments too."""

STRINGS_CHARACTERS = 1000
"""The longest text in a list of ``strings``: each is looked for at every step."""

TYPES = ("number", "integer", "boolean", "string", "strings", "integers", "mapping")
"""Types of a :class:`Parameter`. ``string``: an integer is taken as its digits. ``strings``: non-empty texts; a single one may be
given without a list. ``mapping``: its reader checks the keys and values; one with choices has one of these as its only key."""


STREAM_KINDS = ("text", "audio", "data")
"""Kinds of chunks of an input: a ``TextChunk``, an ``AudioChunk``, a dict of arrays and plain data."""

_LARGEST = 2**31 - 1
"""From here on an upper bound is a field's size, which help texts leave out."""


def _check_type(parameter: Parameter, attribute: Any, value: str) -> None:
    if value not in TYPES:
        raise ConfigError(f"parameter {parameter.name!r}: no type is called {value!r}{did_you_mean(value, TYPES)}")


def _check_kinds(interface: Interface, attribute: Any, kinds: list[str]) -> None:
    for kind in kinds:
        if kind not in STREAM_KINDS:
            raise ConfigError(f"interface.input_streams: no kind is called {kind!r}{did_you_mean(kind, STREAM_KINDS)}")


@frozen
class Parameter:
    """One parameter of a request: its name, type and bounds. ``None`` as a value means that it is not given.

    Attributes:
        name: as in ``params`` or ``metadata``.
        type: one of :data:`TYPES`.
        help: one line for ``--help``.
        default: the value where none is given, for documentation; the stage applies it. ``None``: the stage decides.
        minimum, maximum: inclusive bounds of a number, or of each of several integers; of ``strings``, how many there may be.
        multiple_of: what an ``integer`` must be a multiple of.
        choices: the valid texts of a ``string``, compared without regard to case, or keys of a ``mapping``. Empty: any.
        aliases: further names, as other systems call it. The first is its name on the command line.

    Raises:
        ConfigError: there is no such type.
    """

    name: str
    type: str = field(validator=_check_type)
    help: str
    default: Any = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    multiple_of: int = field(default=1, kw_only=True)
    choices: list[str] = field(factory=list)
    aliases: list[str] = field(factory=list)

    @property
    def names(self) -> list[str]:
        """The name and its aliases."""
        return [self.name, *self.aliases]

    @property
    def expected(self) -> str:
        """The description of valid values in words: ``a number, 0 to 1``."""
        if self.choices:
            return f"{'a mapping with ' * (self.type == 'mapping')}one of: {', '.join(self.choices)}"
        if self.type == "strings":
            most = "" if self.maximum is None else f" of at most {self.maximum:g}"
            return f"a non-empty text of at most {STRINGS_CHARACTERS} characters, or a list{most}"
        if self.type in ("boolean", "string", "mapping"):
            return {"boolean": "true or false", "string": "a text", "mapping": "a mapping"}[self.type]
        kind = {"number": "a number", "integer": "an integer", "integers": "a list of integers"}[self.type]
        if self.multiple_of > 1:
            kind = f"a multiple of {self.multiple_of}"
        unsaid = self.maximum is not None and self.maximum >= _LARGEST
        below = f"below 2**{int(self.maximum or 0).bit_length()}" if unsaid else ""
        return ", ".join(each for each in (kind, self.bounds, below) if each)

    @property
    def bounds(self) -> str:
        """The bounds of a number in words: ``1 or more``, ``0 to 1``. Empty where there are none."""
        if self.minimum is None:
            return "" if self.maximum is None else f"at most {self.maximum:g}"
        if self.maximum is None or self.maximum >= _LARGEST:
            return f"{self.minimum:g} or more"
        return f"{self.minimum:g} to {self.maximum:g}"

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` in the form of its type: an integer for a ``string`` as text, a single text for ``strings`` as a list.

        Raises:
            InvalidRequestError: it is of another type or out of bounds; ``where`` is its path in the message.
        """
        if self.type == "strings" and isinstance(value, str):
            value = [value]
        elif self.type == "string" and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not self._valid(value):
            raise InvalidRequestError(f"{where}: must be {self.expected}, is {shown(value)}")
        return value

    def _valid(self, value: Any) -> bool:
        if self.type == "boolean":
            return isinstance(value, bool)
        if self.type == "mapping":
            return isinstance(value, dict) and (
                not self.choices or (len(value) == 1 and next(iter(value)) in self.choices)
            )
        if self.type == "string":
            return isinstance(value, str) and (not self.choices or value.casefold() in map(str.casefold, self.choices))
        if self.type == "strings":
            texts = isinstance(value, list | tuple) and all(
                isinstance(each, str) and 0 < len(each) <= STRINGS_CHARACTERS for each in value
            )
            return texts and (self.maximum is None or len(value) <= self.maximum)
        if self.type == "integers":
            several = isinstance(value, list | tuple | set | frozenset)
            return several and all(self._in_bounds(each, int) for each in value)
        return self._in_bounds(value, int if self.type == "integer" else (int, float))

    def _in_bounds(self, value: Any, kind: Any) -> bool:
        return bool(
            isinstance(value, kind)
            and not isinstance(value, bool)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and value == value  # no NaN
            and (self.multiple_of == 1 or value % self.multiple_of == 0)
        )


WORD_TIMES = Parameter(
    "timestamps", "string", "the times that are told of what is said", "none", choices=["none", "word"]
)
"""The parameter of the whole request of a pipeline to which the times of its words are extra work: it tells them only when asked."""


@frozen
class ParameterGroup:
    """The parameters of one stage, in a request ``params[name]``.

    Attributes:
        name: the key in ``params``, and the prefix of its flags: ``speech`` makes ``--speech-temperature``.
        role: which of the interface's roles reads them.
        help: what they govern, in a few words: ``how the text is chosen``.
        parameters: the parameters, in the order of their flags.
    """

    name: str
    role: str
    help: str
    parameters: list[Parameter]


def transcription_parameters(*names: str, languages: Sequence[str] = ()) -> list[Parameter]:
    """Return request parameters of a stage that writes recordings down, by the names that clients know: all, or those of ``names``.

    A pipeline declares those that it honours. ``languages``: the codes that it knows, or any.
    """
    found = {
        each.name: each
        for each in (
            Parameter("language", "string", "language of the recording; by default heard", choices=list(languages)),
            Parameter("task", "string", "write it down as it is said, or in English", TASKS[0], choices=[*TASKS]),
            Parameter("prompt", "string", "text that it follows: names, spelling, style"),
            Parameter("temperature", "number", "0: the likeliest words", 0.0, 0, 1),
            Parameter("timestamps", "string", "the times that are told", TIMESTAMPS[0], choices=[*TIMESTAMPS]),
            Parameter("diarize", "boolean", "tell the speakers apart", False),
            Parameter("logprobs", "boolean", "tell the log probabilities of its tokens", False),
        )
    }
    if unknown := [each for each in names if each not in found]:
        raise ConfigError(f"no transcription parameter is called {unknown[0]!r}{did_you_mean(unknown[0], found)}")
    return [found[each] for each in names or found]


@frozen(kw_only=True)
class Interface:
    """The declaration of what a pipeline offers.

    Attributes:
        roles: the stage of each role; see :data:`TEXT`, :data:`SPEECH`, :data:`VOCODER`, :data:`TRANSCRIPTION`.
        inputs: kinds of message parts that it takes (``text``, ``image``, ``audio``, ``video``), and ``reference`` if it can speak with
            the voice of a recording.
        input_streams: kinds of chunks (:data:`STREAM_KINDS`) of which the input of a request may be a stream (``open_request``). The entry
            stage's scheduler then gets ``stream_chunk`` and ``stream_done`` messages; of a request that came whole, ``stream_done`` alone.
        outputs: the modalities that it can answer in: ``text``, ``audio``, ``image``, ``video``; of a pipeline that also answers,
            ``transcript`` if it can be asked to write a recording down and no more, and ``speech`` if it can be asked to speak the text of
            the last message, word for word, and no more: there is no other message but one of the system, which says how it is spoken.
        groups: request parameters by stage. Those of the text role (where there is none, of the speech role, else of the transcription
            role) may also be given at the top level of ``params``.
        params: parameters of the whole request, at the top level of ``params``.
        metadata: the keys that stages read of a request's ``metadata``.
        limits: the largest inputs that it takes, by the option that sets each. Of a recording that is longer than ``max_audio_seconds``, a
            server sends parts to be written down.
        voices: names of the voices, where they are known before a checkpoint is read.
        voices_from: where the names of the voices come from otherwise.
        voices_open: further names are voices too, such as blends of these; the stage refuses those that are not.
        sample_rate: of its speech, in Hz.
        word_times: its sound comes with the words that are said in it and the times at which they are heard, in the ``words`` of its chunks
            and results. With :data:`WORD_TIMES` among its ``params``, of requests that ask for them.
        reference_text: a recording of a voice needs the words that are said in it.
        tool_format: how its text calls tools, as a name or a reference that the server knows. ``None``: it does not.
        tool_choice: a request's ``inputs["tool_choice"]``, the name of a tool or ``*`` for any, makes the reply a call of it.
        completes: it takes ``inputs["prompt"]``, a text that its model goes on from as it is, in place of messages.
        reasoning: it tells what its model thinks before an answer, and reads that in the assistant's messages (``reasoning_content``).
        reads_transcripts: a reply reads the transcript of a recording, not its sound: who has it may send it in its place.
        prompts: the message by which a pipeline that answers does another task, by the task's name: ``transcription`` and
            ``translation`` (into English), sent with a recording; ``speech``, in which ``{text}`` stands for the text that is to be read
            aloud.
        warmup: requests that a server sends before it is ready, as fields of an ``OmniRequest``.
    """

    roles: dict[str, str] = field(factory=dict)
    inputs: list[str] = field(factory=list)
    input_streams: list[str] = field(factory=list, validator=_check_kinds)
    outputs: list[str] = field(factory=list)
    groups: list[ParameterGroup] = field(factory=list)
    params: list[Parameter] = field(factory=list)
    metadata: list[Parameter] = field(factory=list)
    limits: dict[str, float] = field(factory=dict)
    voices: list[str] = field(factory=list)
    voices_from: str | None = None
    voices_open: bool = False
    sample_rate: int | None = None
    word_times: bool = False
    reference_text: bool = False
    tool_format: str | None = None
    tool_choice: bool = False
    completes: bool = False
    reasoning: bool = False
    reads_transcripts: bool = False
    prompts: dict[str, str] = field(factory=dict)
    warmup: list[dict[str, Any]] = field(factory=list)

    @property
    def speaks_texts(self) -> bool:
        """True if it speaks a given text word for word: as the output ``speech``, or because it does nothing else."""
        return SPEECH in self.outputs or ("audio" in self.outputs and TEXT not in self.roles)

    @property
    def plain_group(self) -> ParameterGroup | None:
        """The group whose parameters may be given at the top level of ``params``."""
        by_role = {group.role: group for group in reversed(self.groups)}
        return by_role.get(TEXT) or by_role.get(SPEECH) or by_role.get(TRANSCRIPTION)

    @property
    def structured(self) -> list[str]:
        """The kinds of structure that its text can be held to, of :data:`omni_core.structured.STRUCTURES`; empty: it is free."""
        group = self.plain_group
        found = group.parameters if group is not None and group.role == TEXT else []
        return next((list(each.choices) for each in found if each.name == STRUCTURED), [])

    @property
    def parameter_names(self) -> set[str]:
        """The names that may be keys of ``params``, and those within its groups."""
        parameters = [*self.params, *(each for group in self.groups for each in group.parameters)]
        return {group.name for group in self.groups} | {name for each in parameters for name in each.names}

    def check_params(self, params: Any) -> dict[str, Any]:
        """Return a request's ``params`` with every value of a group in that group, under its own name.

        Raises:
            InvalidRequestError: an unknown name, a wrong value, or one parameter given twice.
        """
        if not isinstance(params, dict):
            raise InvalidRequestError(f"params: must be a mapping, is {shown(params)}")
        groups = {group.name: group for group in self.groups}
        plain = self.plain_group.parameters if self.plain_group is not None else []
        found = {
            name: checked(groups[name].parameters, given, f"params.{name}")
            for name, given in params.items()
            if name in groups and given is not None
        }
        rest = {name: value for name, value in params.items() if name not in groups}
        seeded = [group for group in self.groups for each in group.parameters if each.name == SEED]
        own = [*self.params, *([_parameter(seeded[0], SEED)] if seeded else [])]
        top = checked([*own, *(each for each in plain if each.name != SEED)], rest, "params", [*groups])
        seed = top.pop(SEED, None) if seeded else None
        for each in plain:
            if each.name in top and self.plain_group is not None:
                group = found.setdefault(self.plain_group.name, {})
                if each.name in group:
                    raise InvalidRequestError(
                        f"params.{each.name}: given twice, here and as params.{self.plain_group.name}.{each.name}; give it once"
                    )
                group[each.name] = top.pop(each.name)
        if seed is not None:
            for target in seeded:
                given = found.setdefault(target.name, {})
                given.setdefault(SEED, _parameter(target, SEED).check(seed, f"params.{SEED}"))
        return {**top, **found}

    def check_metadata(self, metadata: Any, others: Iterable[str] = ()) -> dict[str, Any]:
        """Return a request's ``metadata``; the keys in ``others`` may hold anything. Raises as :meth:`check_params`."""
        free = set(others) - {each.name for each in self.metadata}
        if not isinstance(metadata, dict):
            raise InvalidRequestError(f"metadata: must be a mapping, is {shown(metadata)}")
        kept = {name: value for name, value in metadata.items() if name in free}
        rest = {name: value for name, value in metadata.items() if name not in free}
        return kept | checked(self.metadata, rest, "metadata", sorted(free), "key")


def checked(
    parameters: list[Parameter], given: Any, where: str, others: Iterable[str] = (), kind: str = "parameter"
) -> dict[str, Any]:
    """Return the values of ``given`` under the parameters' own names, without those that are ``None``.

    Args:
        others: further valid names, for the message about an unknown one.
        kind: what the message calls them.

    Raises:
        InvalidRequestError: an unknown name, a wrong value, or a parameter given twice; ``where`` is the path in the message.
    """
    if not isinstance(given, dict):
        raise InvalidRequestError(f"{where}: must be a mapping of parameters, is {shown(given)}")
    by_name = {name: parameter for parameter in parameters for name in parameter.names}
    values: dict[str, Any] = {}
    for name, value in given.items():
        parameter = by_name.get(name)
        if parameter is None:
            hint = did_you_mean(name, [*by_name, *others])
            raise InvalidRequestError(f"{where}.{name}: no such {kind}{hint}")
        if value is None:
            continue
        if parameter.name in values:
            raise InvalidRequestError(f"{where}.{name}: given twice, by two of its names: {', '.join(parameter.names)}")
        values[parameter.name] = parameter.check(value, f"{where}.{name}")
    return values


def _parameter(group: ParameterGroup, name: str) -> Parameter:
    return next(each for each in group.parameters if each.name == name)
