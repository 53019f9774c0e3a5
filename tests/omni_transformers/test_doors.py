"""A checkpoint is data: no file of it runs code, and nothing of it makes the loader reach out."""

from __future__ import annotations

import json
import pickle
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import checkpoint, writers
from tiny_transformers.driving import replies, running, say

from omni_core.api import ConfigError
from omni_transformers.checkpoints import read, refusal
from omni_transformers.loading import load_model, load_processor
from omni_transformers.pipeline import transformers
from omni_transformers.words.steps import create_writer

assert writers
MARK = (
    "from pathlib import Path\nPath({path!r}).touch()\nclass Model: pass\nclass Config: pass\nclass Tokenizer: pass\n"
)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every connection fail."""

    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asks the user"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a module beside it that leaves a mark when it is run."""
    made = tmp_path / "model"
    shutil.copytree(checkpoint("LlamaForCausalLM"), made)
    (made / "evil.py").write_text(MARK.format(path=str(tmp_path / "mark")))
    return made


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **values}))


def answers(folder: Path) -> str:
    with running(create_writer(str(folder))) as scheduler:
        [(_, result)] = replies(scheduler, [say("Hello", answer={"max_new_tokens": 4})])
    text: str = result.text
    return text


AUTO = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.Tokenizer", None]}


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"auto_map": AUTO}),
        ("config.json", {"auto_map": {"AutoModelForCausalLM": "someone/other--evil.Model"}}),
        ("config.json", {"attn_implementation": "someone/kernels", "_attn_implementation": "someone/kernels"}),
        ("tokenizer_config.json", {"auto_map": AUTO}),
        ("generation_config.json", {"custom_generate": "someone/generate"}),
        ("generation_config.json", {"penalty_alpha": 0.6, "top_k": 4}),
        ("generation_config.json", {"dola_layers": "high"}),
        ("generation_config.json", {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}),
    ],
)
def test_a_file_that_names_code_is_read_without_it(folder: Path, file: str, values: dict[str, Any]) -> None:
    expected = answers(checkpoint("LlamaForCausalLM"))
    change(folder / file, **values)
    assert answers(folder) == expected
    assert not (folder.parent / "mark").exists()


def test_a_processor_that_is_code_is_refused(folder: Path) -> None:
    change(folder / "processor_config.json", auto_map={"AutoProcessor": "evil.Model"})
    with pytest.raises(ConfigError, match="its processor is code of its own, which is never run here"):
        load_processor(str(folder))
    assert not (folder.parent / "mark").exists()


def test_a_generate_of_its_own_is_not_run(folder: Path) -> None:
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "evil.py", folder / "custom_generate/generate.py")
    assert answers(folder) == answers(checkpoint("LlamaForCausalLM"))
    assert not (folder.parent / "mark").exists()


def test_an_unknown_model_with_code_of_its_own_is_refused(folder: Path) -> None:
    change(folder / "config.json", architectures=["EvilForCausalLM"], model_type="evil", auto_map=AUTO)
    with pytest.raises(ConfigError, match="EvilForCausalLM is no model of transformers; it brings code of its own"):
        transformers(str(folder))
    assert "code of its own" in str(refusal(str(folder)))


def test_an_adapter_is_refused(folder: Path) -> None:
    change(folder / "adapter_config.json", base_model_name_or_path="someone/base", peft_type="LORA")
    with pytest.raises(ConfigError, match="is an adapter"):
        read(str(folder))


def test_weights_are_not_unpickled(folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (folder.parent / "mark",)

    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": torch.zeros(1)}, folder / "pytorch_model.bin")
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"lm_head.weight": Evil()}, file)
    with pytest.raises(ConfigError, match=str(folder)):
        load_model(str(folder))
    assert not (folder.parent / "mark").exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda folder: change(folder / "config.json", architectures=["NobodyForCausalLM"]),
            "NobodyForCausalLM neither speaks",
        ),
        (
            lambda folder: change(
                folder / "config.json", architectures=["FutureForCausalLM"], transformers_version="99.0.0"
            ),
            r"saved by transformers 99.0.0, \S+ is installed: pip install -U transformers",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: shorten(folder / "model.safetensors"), "download|read"),
        (
            lambda folder: change(folder / "config.json", hidden_size=128),
            r"weights have other shapes than config.json says, such as \('",
        ),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "has none of processor_config.json"),
    ],
    ids=["unknown", "newer", "no JSON", "no weights", "half a shard", "another shape", "no processor"],
)
def test_a_damaged_checkpoint_is_one_line_that_says_what_to_do(folder: Path, spoil: Any, words: str) -> None:
    spoil(folder)
    with pytest.raises(ConfigError, match=words) as caught:
        transformers(str(folder))
        load_processor(str(folder))
        load_model(str(folder))
    assert "\n" not in str(caught.value)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
