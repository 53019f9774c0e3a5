"""Holds a text to a schema, an expression or a grammar: the ids that may follow, by llguidance, computed beside the steps.

A grammar is compiled in a thread of its own before its request is admitted, and kept for later requests. What may follow a token is
computed in other threads while the model computes its next step.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from omni_core.api import STRUCTURED, STRUCTURES, InvalidRequestError, structured_parameter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_CHARACTERS = 128 * 1024
"""Of a schema, an expression or a grammar, as JSON."""

MOST_CHOICES = 1000

KEPT = 16
"""Compiled grammars of a stage that are kept. Each grows with what it has read, to 50 MB at most."""

THREADS = 2
"""Requests of a process for which the ids that may follow are computed at once. A step needs tens of microseconds for each."""

WHITE = r"[ \t\r\n]{1,32}"
"""White space between the parts of JSON. A model that writes nothing else would never end."""

_LIMITS: dict[str, Any] = {"max_lexer_states": 30_000, "verbose_errors": False}
"""Beside the library's own limits of work, which end compiling within a second and a step within tens of milliseconds."""

_PLAIN = '\n%llguidance {"no_forcing": true}'
"""An option of grammars: the library would force the tokenizer's tokens of what alone may follow, of ``<|im_end|>`` that of the end."""

_PARAMETER = structured_parameter(*STRUCTURES)


@cache
def _compiler() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "omni-grammars")


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "omni-constraints")


class Constraints:
    """Makes the constraints of the requests of one stage.

    Args:
        tokenizer: returns that of the stage's texts, at the first request that needs it.
        vocab_size: ids that the model's logits have.
        stop_ids: ids that end a text. They may follow where it is complete.
        ranks: that compute each step together. What is over a bound must be so on all of them: those of several compile a grammar
            for each request, because copies count together what they have read, in whatever order threads compute them.
    """

    def __init__(
        self, tokenizer: Callable[[], Tokenizer], vocab_size: int, stop_ids: Iterable[int], ranks: int = 1
    ) -> None:
        self._tokenizer, self._vocab_size, self._stop_ids = tokenizer, vocab_size, sorted(stop_ids)
        self._most_kept = KEPT if ranks == 1 else 0
        self._vocabulary: Any = None
        self._kept: OrderedDict[str, Any] = OrderedDict()

    def begin(self, structured: Any, where: str, begun: str = "", *, held: bool = False) -> TextConstraint | None:
        """Begin to make the constraint of a request; ``None`` if ``structured`` is.

        Args:
            structured: the request's parameter. If it is malformed or too large, or llguidance is not installed,
                :meth:`TextConstraint.check` raises.
            where: the group of parameters, for messages.
            begun: the beginning of the text, which is in the prompt.
            held: see :class:`TextConstraint`.
        """
        if structured is None:
            return None
        where = f"{where}.{STRUCTURED}"
        made = _compiler().submit(self._compiled, structured, where)
        return TextConstraint(made, where, begun, self._vocab_size, held=held)

    def _compiled(self, structured: Any, where: str) -> tuple[Any, Any, Callable[[], Any]]:
        """Return a matcher, the vocabulary, and what makes one that has read nothing and forgets the grammar. In the compiler's thread."""
        grammar = _grammar_of(_PARAMETER.check(structured, where), where)
        if not self._stop_ids:
            raise InvalidRequestError(f"{where}: this model has no token that ends a text")
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer

        if self._vocabulary is None:
            text = self._tokenizer().to_str()
            self._vocabulary = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._stop_ids)

        def anew() -> Any:
            self._kept.pop(grammar, None)
            return LLMatcher(self._vocabulary, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))

        found = self._kept.pop(grammar, None) or anew()  # other threads may forget it at any time
        if found.is_error():
            raise InvalidRequestError(f"{where}: {_reason(found.get_error())}")
        self._kept[grammar] = found
        if len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)
        return found.deep_copy(), self._vocabulary, anew


class TextConstraint:
    """The constraint of one request; see :class:`omni_core.api.Constraint`.

    Args:
        made: gives the matcher, the vocabulary and what makes another matcher, or the error of the request.
        begun: consumed before the first id.
        held: all ids are allowed until :meth:`begin_at`, such as those of thoughts.
    """

    def __init__(
        self, made: Future[tuple[Any, ...]], where: str, begun: str, vocab_size: int, *, held: bool = False
    ) -> None:
        self._where, self._vocab_size = where, vocab_size
        self._matcher: Any = None
        self._anew: Callable[[], Any] | None = None
        self._begun: list[int] = []
        self._begin: int | None = None if held else 0
        self._consumed: list[int] = []
        self._ahead: tuple[list[int], Future[torch.Tensor]] = [], _compiler().submit(self._first, made, begun)

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call ``call`` in another thread once it is made, or cannot be."""
        self._ahead[1].add_done_callback(lambda _: _compiler().submit(call))

    def check(self) -> None:
        """Wait until it is made.

        Raises:
            InvalidRequestError: it cannot be.
        """
        self._ahead[1].result()

    @property
    def held(self) -> bool:
        """True while all ids are allowed."""
        return self._begin is None

    def begin_at(self, count: int) -> None:
        """Hold the ids from number ``count`` of the output on."""
        self._begin = count

    def advance(self, output_ids: Sequence[int]) -> None:
        """Begin to compute what may follow, in another thread."""
        if self._begin is not None and len(output_ids) > self._begin:
            ids = list(output_ids[self._begin :])
            before = self._ahead[1]
            self._ahead = ids, _workers().submit(self._following, ids, before)

    def allowed(self, output_ids: Sequence[int]) -> torch.Tensor | None:
        """Return the ids that may follow, ``[vocab]`` bool on the CPU; ``None``: all.

        Raises:
            InvalidRequestError: the work is over the bounds.
        """
        if self._begin is None:
            return None
        ids, (expected, ahead) = list(output_ids[self._begin :]), self._ahead
        if ids == expected:
            return ahead.result()
        return self._following(ids, ahead)  # a step that failed is computed again, from fewer ids

    def _first(self, made: Future[tuple[Any, ...]], begun: str) -> torch.Tensor:
        self._matcher, vocabulary, self._anew = made.result()
        self._begun = vocabulary.tokenize_str(begun) if begun else []
        if begun and not self._matcher.consume_tokens(self._begun):
            raise InvalidRequestError(f"{self._where}: the text begins with {begun!r}, which is not allowed")
        return self._following([])

    def _following(self, ids: list[int], before: Future[torch.Tensor] | None = None) -> torch.Tensor:
        """Return what may follow. ``before``: the work that must have ended, because it uses the matcher."""
        if before is not None:
            before.exception()
        matcher, consumed = self._matcher, self._consumed
        same = next((at for at, (one, other) in enumerate(zip(consumed, ids, strict=False)) if one != other), None)
        if (kept := min(len(consumed), len(ids)) if same is None else same) < len(consumed):
            matcher.rollback(len(consumed) - kept)
            del consumed[kept:]
        for token in ids[kept:]:
            if not matcher.is_stopped():  # after the end of the text only its last id may follow
                matcher.consume_token(token)
                consumed.append(token)
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error() and self._anew is not None:
            # Copies count together what they have read: by itself this one may be within the bounds.
            self._matcher = matcher = self._anew()
            self._anew = None
            matcher.consume_tokens([*self._begun, *consumed])
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise InvalidRequestError(f"{self._where}: {_reason(matcher.get_error())}")
        return torch.from_numpy(np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_))


def _grammar_of(structured: Mapping[str, Any], where: str) -> str:
    """Return what llguidance compiles. Raises InvalidRequestError: it is malformed, or too large."""
    try:
        import llguidance  # noqa: F401
    except ImportError:
        problem = "needs llguidance where this stage runs: pip install 'omni-torch[structured]'"
        raise InvalidRequestError(f"{where}: {problem}") from None
    [(kind, value)] = structured.items()
    where = f"{where}.{kind}"
    try:
        length = len(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where}: is no JSON: {error}") from None
    if length > MOST_CHARACTERS:
        raise InvalidRequestError(f"{where}: {length} characters are over the limit of {MOST_CHARACTERS}")
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise InvalidRequestError(f"{where}: must be a list of texts")
        if len(value) > MOST_CHOICES:
            raise InvalidRequestError(f"{where}: {len(value)} are over the limit of {MOST_CHOICES}")
        return _of_regex("|".join(map(re.escape, value)))
    if kind in ("regex", "grammar"):
        if not isinstance(value, str):
            raise InvalidRequestError(f"{where}: must be a text")
        return _of_regex(value) if kind == "regex" else value
    schema: Any = {"type": "object"}
    strict = True
    if kind == "json_schema":
        if not isinstance(value, dict) or not isinstance(value.get("schema"), dict):
            raise InvalidRequestError(f"{where}: must be a mapping with schema, a JSON schema")
        schema, strict = value["schema"], value.get("strict", True) is not False
    options = {"whitespace_pattern": WHITE, "lenient": not strict}
    try:
        return f"start: %json {json.dumps({**schema, 'x-guidance': options}, allow_nan=False)}{_PLAIN}"
    except ValueError as error:
        raise InvalidRequestError(f"{where}: {error}") from None


def _of_regex(regex: str) -> str:
    from llguidance import LLMatcher

    [found] = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"]
    return str(found["lark_grammar"]) + _PLAIN


def _reason(error: str) -> str:
    """Return what an error of the library says, in a line: without its place in what was made here."""
    lines = error.strip().split("\n")
    first = lines[0].removeprefix("at 1(8): ").removeprefix("failed to compile JSON schema: ")
    if first == "NoExtensionBias":
        return "no text matches"
    more = (
        next((each for each in lines if each.startswith("error: ")), None) if first.endswith("parse error:") else None
    )
    return f"{first[:200]} {more[7:]}" if more else first[:300]
