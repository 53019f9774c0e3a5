"""Languages that a checkpoint is told, by the codes that clients send. Imports no torch."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from omni_core.api import InvalidRequestError, ParameterGroup
from omni_transformers.checkpoints import Source

_SEAMLESS = (
    "af:afr am:amh ar:arb as:asm az:azj be:bel bn:ben bs:bos bg:bul ca:cat cs:ces cy:cym da:dan de:deu el:ell en:eng et:est eu:eus fi:fin "
    "fr:fra ga:gle gl:glg gu:guj he:heb hi:hin hr:hrv hu:hun hy:hye ig:ibo id:ind is:isl it:ita jv:jav ja:jpn kn:kan ka:kat kk:kaz km:khm "
    "ky:kir ko:kor lo:lao lt:lit lv:lvs lg:lug mk:mkd ml:mal mn:khk mr:mar ms:zsm mt:mlt my:mya ne:npi nl:nld nb:nob nn:nno ny:nya or:ory "
    "pa:pan fa:pes pl:pol pt:por ro:ron ru:rus sk:slk sl:slv sn:sna sd:snd so:som es:spa sr:srp sv:swe sw:swh ta:tam te:tel tg:tgk th:tha "
    "tl:tgl tr:tur uk:ukr ur:urd uz:uzn vi:vie yo:yor zh:cmn zu:zul"
)
_CANARY = "bg hr cs da nl en et fi fr de el hu it lv lt mt pl pt ro sk sl es sv ru uk"
_COHERE = "ar de el en es fr it ja ko nl pl pt vi zh"


@frozen
class Languages:
    """The languages of a model, and the parameters that name them.

    Attributes:
        parameters: names of the request parameters.
        codes: its own code of each language, by the code that clients send.
        default: its own code, where none is given. ``None``: there must be one, as the model does not hear which language it is.
    """

    parameters: list[str] = field(factory=list)
    codes: dict[str, str] = field(factory=dict)
    default: str | None = None

    def of(self, asked: dict[str, Any], group: ParameterGroup) -> str | None:
        """Return the model's own code of a request's language; ``None``: it is not told any.

        Raises:
            InvalidRequestError: it needs one.
        """
        if not self.codes:
            return None
        named = asked.get("language")
        if named is None and self.default is None:
            raise InvalidRequestError(
                f"params.{group.name}.language: this model does not hear which language is spoken; give one of: {', '.join(self.codes)}"
            )
        return self.default if named is None else self.codes[named]


def languages_of(source: Source) -> Languages:
    """Return the languages of a checkpoint."""
    name = source.architecture.name
    if name in ("SeamlessM4TForSpeechToText", "SeamlessM4Tv2ForSpeechToText"):
        known = source.generation.get("text_decoder_lang_to_code_id", {})
        short = {own: code for code, own in (each.split(":") for each in _SEAMLESS.split())}
        return Languages(["language", "task"], {short.get(each, each): each for each in known})
    if name == "CanaryForConditionalGeneration":
        return Languages(["language", "task"], {each: each for each in _CANARY.split()})
    if name == "CohereAsrForConditionalGeneration":
        return Languages(["language"], {each: each for each in _COHERE.split()})
    if name == "Nemotron3_5AsrForRNNT":
        known = source.file("processor_config.json").get("prompt_dictionary") or {}
        codes = {each: each for each in known if each != "auto"}
        return Languages(["language"] if codes else [], codes, "auto" if "auto" in known else None)
    return Languages()
