"""The tokenizer of preprocessing: ids, special tokens and prompts are those of transformers' tokenizer."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from older_layout import write_older_layout
from transformers import AutoTokenizer, Qwen2Tokenizer

from omni_core.errors import ConfigError, InvalidRequestError
from omni_qwen3.chat_template import ChatTemplate
from omni_qwen3.config import read_config
from omni_qwen3.tokenizer import ChatTokenizer, load_chat_tokenizer, load_tokenizer, markers

TEXTS = [
    "What is in the picture, and what do you hear?",
    "It's 12345 o'clock; WE'LL see   what\tthey'd say\r\n\r\n  \n end ",
    "Grüße, Ångström, 世界 🦊! e\u0301 A\u030a ﬁ ½ ١٢٣ 한국어 \u00a0\u2003\u200b",
    "<|im_start|>user\nhello<|im_end|>\n<|audio_pad|><tts_pad> <|im_start|",
    "",
    " ",
    "\x00\x07\ufffd",
]


def own(folder: Path) -> ChatTokenizer:
    return load_chat_tokenizer(str(folder), read_config(folder))


def test_ids_are_those_of_the_reference(tiny: dict[str, Path]) -> None:
    tokenizer, reference = own(tiny["a"]), AutoTokenizer.from_pretrained(tiny["a"])
    draw = random.Random(0)
    letters = [*"ab Z.,'-\n\t019éß世🦊", "e\u0301", "'ll", "<|im_end|>", "  "]
    drawn = ["".join(draw.choices(letters, k=draw.randint(1, 40))) for _ in range(300)]
    for text in [*TEXTS, *drawn]:
        assert tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"], repr(text)
    assert set(tokenizer.special_tokens) == set(reference.all_special_tokens)
    assert tokenizer.token(tokenizer.encode("<|audio_pad|>")[0]) == "<|audio_pad|>"
    with pytest.raises(ConfigError, match="no token of the id 999999"):
        tokenizer.token(999_999)


TEMPLATES = {
    "that of the tiny checkpoint": None,
    "loop controls": "{% for message in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ message.role }}\n{% endfor %}",
    "json with options": "{{ messages | tojson(true) }}{{ messages | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=True) }}",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "blocks\n": "  {% if tools is none and documents is none %}\nno tools\n  {% endif %}\n{{ eos_token }}{{ bos_token }}|{{ audio_token }}",
    "an undefined name": "{{ messages[0].name }}{% if enable_thinking is defined %}x{% endif %}{{ add_generation_prompt }}",
    "training": "{% for each in messages %}{% generation %}{% set x = 1 %}{{ each.role }}\n{% endgeneration %}{{ x }}{% endfor %}",
    "a date": "{{ strftime_now('%Y') | length }}",
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_those_of_the_reference(tiny: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    if (template := TEMPLATES[name]) is not None:
        (folder / "chat_template.jinja").write_text(template)
    parts = [{"type": "text", "text": "<b>Grüße</b> {{ 1 }}"}, {"type": "image"}, {"type": "audio"}, {"type": "video"}]
    turns = [("system", "Be kind.\n"), ("user", "Hello"), ("assistant", " Hi. ")]
    messages: list[dict[str, Any]] = [
        *({"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns),
        {"role": "user", "content": parts},
    ]
    reference = AutoTokenizer.from_pretrained(folder)
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert own(folder).render(messages) == expected
    assert own(write_older_layout(folder, tmp_path / "older")).render(messages) == expected


def test_a_template_may_be_in_the_tokenizer_s_config(tiny: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert own(folder).render(messages) == own(tiny["a"]).render(messages)
    assert type(own(folder)) is type(own(tiny["a"]))


def test_the_layout_of_the_released_checkpoint_is_read(tiny: dict[str, Path], tmp_path: Path) -> None:
    """``vocab.json`` and ``merges.txt`` in place of ``tokenizer.json``."""
    folder = write_older_layout(tiny["a"], tmp_path / "checkpoint")
    older, newer = own(folder), own(tiny["a"])
    assert type(older) is not type(newer)
    messages = [{"role": "user", "content": [{"type": "text", "text": "It's 2026. Grüße, 世界!"}, {"type": "audio"}]}]
    assert older.render(messages) == newer.render(messages)
    for text in TEXTS:
        assert older.encode(text) == newer.encode(text)
    assert set(older.special_tokens) == set(newer.special_tokens)
    ids = newer.encode("Grüße")
    ids_of = markers(read_config(folder))
    made = [load_tokenizer(str(each), ids_of).decode(ids) for each in (folder, tiny["a"])]
    assert made == ["Grüße", "Grüße"]


@pytest.mark.parametrize("missing", ["vocab.json", "merges.txt"])
def test_a_missing_tokenizer_is_named(tiny: dict[str, Path], tmp_path: Path, missing: str) -> None:
    folder = write_older_layout(tiny["a"], tmp_path / "checkpoint")
    (folder / missing).unlink()
    for load in (lambda: own(folder), lambda: load_tokenizer(str(folder), markers(read_config(folder)))):
        with pytest.raises(ConfigError, match=rf"has no tokenizer: tokenizer.json is missing, and so is {missing}"):
            load()


def test_another_kind_of_tokenizer_is_left_to_transformers(tiny: dict[str, Path], tmp_path: Path) -> None:
    """A class that divides text in another way must not be given this one's rule."""
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    reference = AutoTokenizer.from_pretrained(folder)
    assert not isinstance(reference, Qwen2Tokenizer)
    for text in TEXTS:
        assert own(folder).encode(text) == reference(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('only one system message') }}", "refuses them: only one system message"),
        ("{{ messages.clear() }}", "template refuses them"),
        ("{{ ''.__class__.__mro__ }}", "template refuses them"),
        ("{{ nobody.name }}", "'nobody' is undefined"),
    ],
)
def test_a_template_can_refuse_messages_and_do_nothing_else(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(InvalidRequestError, match=words):
        ChatTemplate(tmp_path, {}).render([{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}{% endfor %}", "cannot be read: Expected an expression"),
        *(("{% if messages %}" * depth + "x" + "{% endif %}" * depth, "cannot be read: ") for depth in (150, 3000)),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "cannot be read: it is nested too deeply"),
    ],
)
def test_a_broken_template_is_named(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(ConfigError, match=f"the chat template of {tmp_path} {words}"):
        ChatTemplate(tmp_path, {})


def test_code_beside_an_older_tokenizer_is_neither_run_nor_asked_for(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(tiny["a"], tmp_path / "checkpoint")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Own: ...\n")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    questions: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *text: questions.append(text) or "y")
    (folder / "config.json").write_text(
        '{"model_type": "own"}'
    )  # no model of transformers, whose own class would be taken
    with pytest.raises(ConfigError, match="contains custom code"):
        load_chat_tokenizer(str(folder), read_config(tiny["a"]))
    assert (questions, (tmp_path / "ran").exists()) == ([], False)
