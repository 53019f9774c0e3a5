"""Documents: the line of every value, plain data only, and no text that ends in anything but a document or an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.deploy.source import LayeredSource
from omni_cli.deploy.writing import dump_json
from omni_core.config.documents import MOST_TEXT, Document, parse_yaml
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, OmniError

TEXT = """a: 1
b:
  - x
  - {c: 2,
     d: [1, 2]}
e: &anchor {f: 1}
g: {<<: *anchor, h: no}
"""


def test_every_key_and_item_has_its_line() -> None:
    values, lines = parse_yaml(TEXT, "t.yaml")
    assert values == {"a": 1, "b": ["x", {"c": 2, "d": [1, 2]}], "e": {"f": 1}, "g": {"f": 1, "h": "no"}}
    expected = {("a",): 1, ("b", 0): 3, ("b", 1, "c"): 4, ("b", 1, "d"): 5, ("b", 1, "d", 1): 5, ("g", "h"): 7}
    assert {place: lines[place] for place in expected} == expected
    document = Document("t.yaml", Path(), values, lines)
    assert document.origin("b", 1, "d", 7, "x") == "t.yaml:5"
    assert document.origin("g", "f") == "t.yaml:7", "what is merged in is where the merge is"


_NINES = [f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]" for below, name in zip("abcdef", "bcdefg", strict=True)]
LAUGHS = "\n".join(["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]", *_NINES])
"""Aliases that stand for five million values."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [*x]", "line 1: an alias stands for a value that contains it"),
        (LAUGHS, "more than 100000 values"),
        ("[" * 103 + "]" * 103, "nested more than 100 deep"),
        ("[" * 1500, "nested too deeply"),
        ("a: 2001-02-03", "t.yaml:1: datetime.date"),
        ("\na: 2001-99-99", "no valid YAML: month must be in 1..12"),
        ("a: !!binary aGk=", "t.yaml:1: b'hi' is a bytes"),
        ("a:\n  1: x", "t.yaml:2: the key 1 must be a text; write it in quotes"),
        ("? [1]\n: x", "the key (1,) must be a text"),
        ("a: 1\na: 2", 't.yaml:2: no valid YAML: while constructing a mapping, found duplicate key "a"'),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: b\n---\nc: d", "expected a single document"),
        ("!!float ''", "no valid YAML"),
        ("\x00", "no valid YAML"),
    ],
)  # fmt: skip
def test_what_is_no_plain_data_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "t.yaml")
    assert words in str(caught.value)
    assert "t.yaml" in str(caught.value)


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=5)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(plain)
def test_json_reads_back_equal(values: Any) -> None:
    assert parse_yaml(json.dumps(values, ensure_ascii=False), "t.json")[0] == values


WORDS = [
    *(
        "pipeline",
        "base",
        "options",
        "stages",
        "only",
        "factory_args",
        "platforms",
        "cpu",
        "defaults",
        "params",
        "limits",
        "images",
    ),
    *(
        "server",
        "launcher",
        "relays",
        "relay",
        "name",
        "gpu",
        "tp_size",
        "env",
        "next",
        "model_path",
        "restart",
        "interface",
        "*",
    ),
    *(
        "whole.json",
        "t.yaml",
        "1",
        "-1",
        "2.5e9",
        "null",
        "true",
        "nan",
        "''",
        "~",
        "2001-01-01",
        "!!int",
        "&a",
        "*a",
        "<<",
    ),
]
keys = st.sampled_from([each for each in WORDS if each.replace("_", "").isalpha()] + ["*"])
trees = st.recursive(
    st.sampled_from(WORDS) | st.integers(-2, 3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from([*WORDS, ": ", "\n", "\n  ", "- ", "{", "}", "[", "]", ", ", "? "]), max_size=30).map(
        "".join
    ),
    trees.map(json.dumps),
    st.dictionaries(keys, trees, max_size=5).map(lambda tree: json.dumps({"base": "whole.json", **tree})),
)


@given(texts)
def test_no_text_of_a_file_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    stage = StageConfig(name="only", factory="json:dumps", process="p", terminal=True)
    (folder / "whole.json").write_text(dump_json(PipelineConfig(model_path="m", stages=[stage])))
    (folder / "t.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        found = LayeredSource(str(folder / "t.yaml")).resolve()
    except OmniError as error:
        assert str(error)  # noqa: PT017
    else:
        assert found.config.stages


@pytest.mark.parametrize("kind", ["device", "sparse file"])
def test_no_more_is_read_than_a_document_has(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**36)
    with pytest.raises(ConfigError, match=rf"config\.json has more than {MOST_TEXT} characters"):
        Document.read(path)
