"""Request parameters of a stage that writes text by tokens: what its text must be, and how likely each token was.

A pipeline declares those that its stage honours, in the group of the text role; a server translates the fields of its protocol to them.
"""

from __future__ import annotations

from omni_core.errors import ConfigError, did_you_mean
from omni_core.interface import STRUCTURED, Parameter

STRUCTURES = ("json_object", "json_schema", "choice", "regex", "grammar")
"""Kinds of structure that the whole of a text can be held to, as the only key of the parameter ``structured``:

- ``json_object``: an empty mapping: any object of JSON.
- ``json_schema``: ``schema``, a JSON schema, and ``strict``: false leaves keywords out that the stage does not know; else they are
  an error. A ``name`` and a ``description`` have no effect.
- ``choice``: a list of texts, of which it is one.
- ``regex``: a regular expression that matches all of it.
- ``grammar``: a context-free grammar in Lark's notation, whose first rule is ``start``; ``%json {...}`` is a JSON schema in it."""

TOP_LOGPROBS = Parameter(
    "top_logprobs", "integer", "log probabilities of each token, and of so many likely ones in its place", None, 0, 20
)
"""0: of the chosen token alone. They come as :class:`~omni_core.protocol.outputs.TokenLogprob`; by default they are not computed."""


def structured_parameter(*kinds: str) -> Parameter:
    """Return the parameter ``structured`` for kinds of :data:`STRUCTURES`.

    Raises:
        ConfigError: there is no such kind.
    """
    for kind in kinds:
        if kind not in STRUCTURES:
            raise ConfigError(f"structured: no kind is called {kind!r}{did_you_mean(kind, STRUCTURES)}")
    return Parameter(STRUCTURED, "mapping", "what the text must be", choices=list(kinds))
