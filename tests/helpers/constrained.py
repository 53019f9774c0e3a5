"""Random draws among the ids that a constraint allows, over a vocabulary of bytes."""

from __future__ import annotations

import random
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from omni_torch.sampling.constraints import Constraints, TextConstraint

END, VOCABULARY = 260, 300


def bytewise() -> Tokenizer:
    """Return a tokenizer of bytes and four longer tokens, with one that ends texts."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "r"), ("tr", "u"), ("tru", "e"), ('"', ":")]
    vocabulary = {each: number for number, each in enumerate([*letters, *("".join(each) for each in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    assert tokenizer.token_to_id("<end>") == END
    return tokenizer


TOKENIZER = bytewise()
CONSTRAINTS = Constraints(lambda: TOKENIZER, VOCABULARY, [END])
CLOSING = [*(TOKENIZER.token_to_id(each) for each in ('"', "]", "}")), END]


def begin(begun: str = "", **structured: Any) -> TextConstraint:
    made = CONSTRAINTS.begin(structured, "params.writer", begun)
    assert made is not None
    made.check()
    return made


def written(constraint: TextConstraint, seed: int, most: int = 3000) -> str:
    """Return what random draws write; after a while they close what is open, if they may."""
    chance, ids = random.Random(seed), list[int]()
    while len(ids) < most:
        allowed = constraint.allowed(ids)
        assert allowed is not None
        may = allowed.nonzero()[:, 0].tolist()
        closing = [each for each in CLOSING if allowed[each]] if len(ids) > 40 else []
        ids.append(chance.choice(closing or may))
        if ids[-1] == END:
            return str(TOKENIZER.decode(ids))
        constraint.advance(ids)
    raise AssertionError(f"no end after {TOKENIZER.decode(ids)[:200]!r}")
