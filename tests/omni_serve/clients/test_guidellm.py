"""GuideLLM: a benchmark over chats, whose every request is answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from client_voices import KEY


def test_a_benchmark(address: str, tmp_path: Path) -> None:
    prompts = ["hello there", "one two three", "four"]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{json.dumps({'prompt': each})}\n" for each in prompts))
    options = {
        "backend": f"kind=openai_http,target=http://{address},api_key={KEY},model=tones",
        "profile": "kind=synchronous",
        "constraint": "kind=max_requests,count=3",
        "data": "kind=json_file,path=prompts.jsonl",
        "output": "kind=json,path=report.json",
    }
    command = [str(Path(sys.executable).parent / "guidellm"), "run", "--disable-console"]
    for name, value in options.items():
        command += [f"--{name}", value]
    subprocess.run(command, cwd=tmp_path, check=True)
    (benchmark,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    answered = benchmark["requests"]["successful"]
    assert sorted((each["output"], each["output_tokens"]) for each in answered) == [
        ("four", 1),
        ("hello there", 2),
        ("one two three", 3),
    ]
