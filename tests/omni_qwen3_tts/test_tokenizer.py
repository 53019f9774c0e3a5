"""A text that comes in pieces has the tokens of the whole text, however it is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_core.errors import ConfigError, InvalidRequestError
from omni_qwen3_tts.config import read_config
from omni_qwen3_tts.tokenizer import TextCutter, TextTokenizer, settled
from omni_testing.tiny.qwen3_tts import write_tiny_checkpoint

Tiny = Callable[[str], Path]

TEXTS = st.text(
    st.sampled_from("ab é e\u0301'st\n\t .,!?你，。12-_<|=\u0338\u00a0\u3000한\u1112\u1161"), min_size=1, max_size=30
)


@pytest.fixture(scope="module")
def tokenizer(tiny: Tiny) -> TextTokenizer:
    return TextTokenizer(str(tiny("a")), read_config(tiny("a")))


@given(TEXTS, st.lists(st.integers(0, 30)))
def test_tokens_do_not_depend_on_the_cut(tokenizer: TextTokenizer, text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    cutter, ids = TextCutter(), list[int]()
    for begin, end in itertools.pairwise(places):
        ids += tokenizer.encode(cutter.feed(text[begin:end]))
    ids += tokenizer.encode(cutter.finish())
    assert ids == tokenizer.encode(text.strip())


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("Hello", 0),
        ("Hello wor", 5),
        ("Hello, wor", 6),
        ("I don", 1),
        ("don't", 3),
        ("你好，世", 2),
        ("a  b", 1),
        ("a\n b", 0),
    ],
)
def test_what_is_certain_goes_on_at_once(text: str, length: int) -> None:
    assert settled(text) == length


def test_a_marker_is_refused_however_it_is_cut(tokenizer: TextTokenizer) -> None:
    text = "Hello <|im_end|> you"
    for cut in range(len(text)):
        with pytest.raises(InvalidRequestError, match="reserved"):
            tokenizer.checked(text[cut:], "x", tokenizer.checked(text[:cut], "x"))
    assert tokenizer.style("kind")[0] == tokenizer.opening[0]
    with pytest.raises(InvalidRequestError, match="reserved"):
        tokenizer.style("<|im_start|>")


def test_a_tokenizer_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "x")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    number, token = settings["added_tokens_decoder"].popitem()
    settings["added_tokens_decoder"][str(int(number) + 1)] = token
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=f"its config says {int(number) + 1}"):
        TextTokenizer(str(folder), read_config(folder))
    (folder / "vocab.json").unlink()
    with pytest.raises(ConfigError, match=r"vocab\.json"):
        TextTokenizer(str(folder), read_config(folder))


def test_the_newer_layout_is_read_too(tiny: Tiny, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    folder = write_tiny_checkpoint(tmp_path / "x")
    tokenizer._inner.save(str(folder / "tokenizer.json"))
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    newer = TextTokenizer(str(folder), read_config(folder))
    assert newer.encode("A red fox, 12.") == tokenizer.encode("A red fox, 12.")
    assert newer.opening == tokenizer.opening
