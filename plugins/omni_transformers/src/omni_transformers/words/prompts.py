"""The inputs of a model's forward, from the messages of a request, by its processor and chat template."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import field, frozen
from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError
from transformers import BatchFeature
from transformers.utils.chat_template_utils import render_jinja_template

from omni_core.api import ConfigError, InvalidRequestError, OmniRequest
from omni_media.api import LIMITS, Limits
from omni_transformers.checkpoints import first_line
from omni_transformers.words.forms import VARIABLES
from omni_transformers.words.messages import Conversation, read_messages
from omni_transformers.words.recordings import check_heard

logger = logging.getLogger(__name__)

_LOOP = re.compile(r"\{%-?\s*for\s+\w+\s+in\s+[\w.\[\]'\"]*\bcontent\b")
"""A chat template that goes through the parts of a message."""


@frozen
class Prompts:
    """Makes the inputs of requests.

    Args:
        processor: of the checkpoint, or its tokenizer.
        kinds: of parts that the model takes.
        architecture: the name of the model's class.
        limits: of the media of a request.

    Raises:
        ConfigError: the chat template is broken.
    """

    processor: Any
    kinds: Sequence[str]
    architecture: str = ""
    limits: Limits = LIMITS
    _control: re.Pattern[str] | None = field(init=False)
    _parts: bool = field(init=False)

    @_control.default
    def _control_tokens(self) -> re.Pattern[str] | None:
        tokenizer, template = self.tokenizer, str(self.template or "")
        found = {
            each.content
            for each in getattr(tokenizer, "added_tokens_decoder", {}).values()
            if each.special or (each.content in template and not each.content.isspace())
        }
        found |= {self.placeholder(kind) for kind in ("image", "audio", "video")}
        longest_first = sorted((each for each in found if each), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if found else None

    @_parts.default
    def _goes_through_parts(self) -> bool:
        return bool(_LOOP.search(str(self.template or "")))

    def __attrs_post_init__(self) -> None:
        name = getattr(self.tokenizer, "name_or_path", "") or self.architecture
        if self.template is None and self.architecture.endswith("ForCausalLM"):
            logger.warning("%s: has no chat template: it continues the text of one message", name)
        templates = self.template if isinstance(self.template, dict) else {"default": self.template}
        for each in filter(None, templates.values()):
            self._try(each, name)

    def _try(self, template: str, name: str) -> None:
        """Write a prompt of one message by a template. Raises ConfigError if it is broken; what it refuses is said in the log."""
        content = [{"type": "text", "text": "Hello"}] if self._in_parts(media=False) else "Hello"
        special = getattr(self.tokenizer, "special_tokens_map", {})
        try:
            render_jinja_template(
                [[{"role": "user", "content": content}]], chat_template=template, add_generation_prompt=True, **special
            )
        except (TemplateSyntaxError, SecurityError) as error:
            line = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            problem = first_line(error).rstrip(".")
            raise ConfigError(
                f"{name}: its chat template is broken{line}: {problem}; mend it (chat_template.jinja, or chat_template in "
                "tokenizer_config.json), or download the checkpoint again"
            ) from error
        except Exception as error:
            logger.warning("%s: its chat template refuses a message that is a text: %s", name, first_line(error))

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer."""
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def template(self) -> Any:
        """The chat template: one, or several by name; ``None``: there is none."""
        own = getattr(self.processor, "chat_template", None)
        return own if own is not None else getattr(self.tokenizer, "chat_template", None)

    def inputs(self, request: OmniRequest) -> BatchFeature:
        """Return the inputs of a forward, tensors with a batch of one.

        Raises:
            InvalidRequestError: the messages are malformed, hold what the model does not take, or the chat template refuses them.
        """
        from omni_transformers.words.adapters import NEEDS, PROMPTS

        if isinstance(request.inputs, dict) and (prompt := request.inputs.get("prompt")) is not None:
            return self._as_it_is(prompt, request)
        variables = {name: request.params[name] for name in VARIABLES if name in request.params}
        conversation = read_messages(request.inputs, self.kinds, self.processor, self.limits, variables)
        needed = NEEDS.get(self.architecture)
        if needed is not None and needed not in conversation.kinds():
            raise InvalidRequestError(f"messages: this model writes of {_NAMES[needed]}; there is none")
        write: Callable[[Prompts, Conversation], Any] | None = PROMPTS.get(self.architecture)
        if write is None:
            write = Prompts.continued if self.template is None else Prompts.templated
        found = self.made(write, self, conversation)
        check_heard(self.processor, found, conversation.sounds)
        return BatchFeature({**found, **self.extra})

    def _as_it_is(self, prompt: Any, request: OmniRequest) -> BatchFeature:
        """Return the inputs of a text that the model goes on from."""
        if not isinstance(prompt, str) or not prompt or request.inputs.get("messages"):
            raise InvalidRequestError("inputs.prompt: must be a text, in place of messages")
        return BatchFeature({**self.made(self.tokenizer, prompt, return_tensors="pt"), **self.extra})

    @property
    def extra(self) -> dict[str, Any]:
        """Inputs of the model beside those that its processor makes."""
        from omni_transformers.words.adapters import EXTRA

        return EXTRA.get(self.architecture, {})

    def made(self, write: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return what a call of the processor gives; what it raises is an error of the request."""
        try:
            return write(*given, **named)
        except InvalidRequestError:
            raise
        except Exception as error:
            raise InvalidRequestError(
                f"messages: the checkpoint's processor or chat template refuses them: {first_line(error)}"
            ) from error

    def templated(self, conversation: Conversation, **named: Any) -> Any:
        """Return the inputs by the chat template. ``named``: variables of the template."""
        in_parts = self._in_parts(conversation.media)
        messages = conversation.in_parts() if in_parts else conversation.in_strings(self.placeholder)
        named = conversation.variables | named
        spelled = self.spelled(conversation)
        if spelled and conversation.media and not in_parts:
            raise self.refusal(spelled)
        if spelled:
            named["sanitize_control_tokens"] = True
        if conversation.tools:
            named["tools"] = conversation.tools
        if hasattr(self.processor, "tokenizer"):
            return self._by_processor(conversation, messages, named, in_parts, spelled)
        return self._sanitised(self.processor.apply_chat_template, spelled, messages, **_TENSORS, **named)

    def _in_parts(self, media: bool) -> bool:
        """Return whether contents are given to the template as lists of parts."""
        return self._parts and (media or hasattr(self.processor, "tokenizer"))

    def _by_processor(
        self,
        conversation: Conversation,
        messages: list[Any],
        named: dict[str, Any],
        in_parts: bool,
        spelled: str | None,
    ) -> Any:
        settings: dict[str, Any] = {}
        if conversation.videos:
            settings["videos_kwargs"] = {"do_sample_frames": False, "video_metadata": conversation.video_metadata()}
        if in_parts and getattr(self.processor, "chat_template", None) is not None:
            return self._sanitised(
                self.processor.apply_chat_template, spelled, messages, **_TENSORS, **named, processor_kwargs=settings
            )
        if spelled:
            raise self.refusal(spelled)
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **named)
        begins = self.tokenizer.bos_token is not None and text.startswith(self.tokenizer.bos_token)
        return self.call(conversation, text, add_special_tokens=not begins, **settings)

    def _sanitised(self, call: Callable[..., Any], spelled: str | None, *given: Any, **named: Any) -> Any:
        try:
            return call(*given, **named)
        except NotImplementedError:  # the tokenizer cannot keep a special token apart from its spelling
            if spelled:
                raise self.refusal(spelled) from None
            raise

    def continued(self, conversation: Conversation) -> Any:
        """Return the inputs of a checkpoint without a chat template: its only message, as it is."""
        if len(conversation.messages) > 1:
            raise InvalidRequestError(
                "messages: this checkpoint has no chat template, so that it continues the text of one message: send one, or take the "
                "checkpoint that was trained to chat"
            )
        return self.plain(conversation)

    def plain(self, conversation: Conversation, marked: bool = True) -> Any:
        """Return the inputs of a checkpoint without a chat template: the text as it is, behind the placeholders of the media."""
        if spelled := self.spelled(conversation):
            raise self.refusal(spelled)
        marks = "".join(self.placeholder(kind) for kind in conversation.kinds()) if marked else ""
        return self.call(conversation, marks + conversation.text or (None if conversation.media else ""))

    def call(self, conversation: Conversation, text: str | None, **settings: Any) -> Any:
        """Call the processor with a text and the media of a conversation."""
        media: dict[str, Any] = {
            "images": conversation.pictures, "videos": [each.frames for each in conversation.videos], "audio": conversation.sounds
        }  # fmt: skip
        return self.processor(
            text=text, **{name: found for name, found in media.items() if found}, return_tensors="pt", **settings
        )

    def placeholder(self, kind: str) -> str:
        """Return the token that stands for a piece of media in a text; empty where the processor has none."""
        token = getattr(self.processor, f"{kind}_token", None) or ""
        return str(getattr(token, "content", token))

    def spelled(self, conversation: Conversation) -> str | None:
        """Return a special token that a text of the request spells."""
        if self._control is None:
            return None
        found = (self._control.search(each) for each in strings([conversation.messages, conversation.tools]))
        return next((each[0] for each in found if each), None)

    def refusal(self, token: str) -> InvalidRequestError:
        """Return the error for a special token in a text."""
        return InvalidRequestError(
            f"messages: their text spells {token!r}, which is a special token of this checkpoint; write it otherwise"
        )


_NAMES = {"image": "a picture", "audio": "a recording", "video": "a video"}

_TENSORS = {"tokenize": True, "add_generation_prompt": True, "return_dict": True, "return_tensors": "pt"}


def strings(value: Any) -> Iterator[str]:
    """Yield the texts in a structure of plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)
