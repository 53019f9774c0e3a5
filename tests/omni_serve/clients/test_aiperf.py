"""aiperf: a benchmark over streamed chats, whose every request is answered, counted by the server's own usage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from client_voices import KEY
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast


def test_a_benchmark(address: str, tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"word": 0}, unk_token="word"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "tokenizer")  # Others it would fetch.
    (tmp_path / "prompts.jsonl").write_text('{"text": "hello there"}\n')
    options = {
        "model": "tones",
        "url": f"http://{address}",
        "api-key": KEY,
        "endpoint-type": "chat",
        "tokenizer": str(tmp_path / "tokenizer"),
        "input-file": str(tmp_path / "prompts.jsonl"),
        "custom-dataset-type": "single_turn",
        "request-count": "3",
        "output-artifact-dir": str(tmp_path / "report"),
        "ui": "none",
    }
    command = [str(Path(sys.executable).parent / "aiperf"), "profile", "--streaming", "--use-server-token-count"]
    for name, value in options.items():
        command += [f"--{name}", value]
    subprocess.run(command, cwd=tmp_path, check=True)
    report = json.loads((tmp_path / "report/profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 3
    assert report["output_sequence_length"]["min"] == report["output_sequence_length"]["max"] == 2
