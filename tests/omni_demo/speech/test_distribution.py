"""The distribution: a small checkpoint in the released layout that `omni run demo` finds, and a README that matches it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
import torch
from safetensors.torch import load_file

from omni_demo.speech.phrases import COLOURS, KEYWORDS, TOPICS, UNKNOWN
from omni_demo.speech.pipeline import CHECKPOINT
from omni_qwen3.code2wav import Vocoder
from omni_qwen3.config import read_config
from omni_qwen3.talker_network import load_talker
from omni_qwen3.thinker_network import load_thinker

README = Path(__file__).parents[3] / "plugins/omni_demo/README.md"


def test_the_checkpoint_is_small_and_of_sixteen_bits() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 12e6
    weights = load_file(CHECKPOINT / "model.safetensors")
    assert {name.split(".")[0] for name in weights} == {"thinker", "talker", "code2wav"}
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert 5e6 < sum(tensor.numel() for tensor in weights.values()) < 6e6


def test_our_own_networks_load_it() -> None:
    config, path = read_config(CHECKPOINT), str(CHECKPOINT)
    load_thinker(path, config)
    load_talker(path, config)
    Vocoder(path)


def test_omni_run_demo_answers_in_text_and_speech(tmp_path: Path) -> None:
    out = tmp_path / "hello.wav"
    command = [sys.executable, "-m", "omni_core.cli", "run", "demo", "--text", "hello", "--out", str(out)]
    done = subprocess.run(
        [*command, "--option", "processes=one"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Hello, nice to meet you."
    assert "fixed set of questions" in done.stderr
    samples, rate = soundfile.read(out)
    assert rate == 24_000
    assert len(samples) > rate


@pytest.mark.skipif(not README.exists(), reason="the README is not beside the installed package")
def test_the_readme_names_every_prompt_and_reply() -> None:
    text = README.read_text()
    said = [*COLOURS, *KEYWORDS, UNKNOWN]
    said += [words for topic in TOPICS for words in (topic.reply, *topic.prompts)]
    assert not [words for words in said if words not in text]
