"""Writes which architectures equal transformers, by the tests that compare them: ``python tests/omni_transformers/record.py``.

The file is a part of the distribution; ``omni models`` and the documentation show it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
COMPARISONS = {
    "speak/test_speakers.py": "test_the_sound_is_that_of_the_models_own_call",
    "recognise/test_recognisers.py": "test_what_is_written_is_what_transformers_writes",
    "recognise/test_whisper.py": "test_a_window_is_written_as_by_generate_and_tentative_by_token",
    "words/test_architectures.py": "test_answers_are_those_of_generate or test_transcripts_are_those_of_generate",
    "words/test_engine.py": "test_ids_at_once_equal_those_of_generate_and_streams_equal_texts",
}
"""By file, the tests that compare an architecture, which is a parameter of them."""

ENDPOINTS = {
    "speak/test_endpoint.py": "test_the_sdk_gets_the_sound_as_wav_and_as_pcm",
    "recognise/test_serving.py": "test_a_recording_is_written_down_as_by_transformers",
    "words/test_endpoints.py": "test_a_message_is_answered_as_by_generate or test_a_recording_is_written_down_as_by_generate",
}
"""By file, the tests that ask one through its endpoint."""

STREAMS = {"seq2seq": "tokens", "ctc": "windows", "transducer": "windows"}


class Passed:
    """Collects the architectures of which every comparison has passed, and of those whose requests share their decoder the calls.

    Attributes:
        calls: for each, how many shared a batch, and how many the model computed alone.
    """

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        self.calls: dict[str, tuple[int, int]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        from omni_transformers.calls.batch import Calls

        own, name = Calls.compute, _name(item.nodeid)

        def compute(calls: Calls, lines: Any) -> None:
            own(calls, lines)
            self.calls[name] = calls.rows, calls.alone

        Calls.compute = compute  # type: ignore[method-assign]
        try:
            return (yield)
        finally:
            Calls.compute = own  # type: ignore[method-assign]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _name(report.nodeid)
        if report.failed:
            self.failed.add(name)
        elif report.when == "call" and report.passed:
            self.passed.add(name)


def _name(test: str) -> str:
    """Return the architecture of a test."""
    names = re.findall(r"[A-Z]\w+", test.partition("[")[2])
    return "WhisperForConditionalGeneration" if "test_whisper" in test else names[0] if names else ""


def main() -> None:
    compared, asked = Passed(), Passed()
    for collected, tests in ((compared, COMPARISONS), (asked, ENDPOINTS)):
        for file, names in tests.items():
            pytest.main(["-q", "-m", "", "-k", names, "-p", "no:cacheprovider", str(HERE / file)], plugins=[collected])
    failed = compared.failed | asked.failed
    import transformers

    from omni_transformers.checked import FILE

    table = {
        name: {**how(name, *compared.calls.get(name, (0, 0))), "transformers": transformers.__version__}
        for name in sorted((compared.passed & asked.passed) - failed)
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{len(table)} architectures; not equal: {', '.join(sorted(failed)) or 'none'}")
    sys.exit(bool(failed))


def how(name: str, shared: int, alone: int) -> dict[str, str]:
    """Return the backend of an architecture, and what it streams.

    Args:
        shared, alone: calls of its decoder that shared a batch, and that did not.
    """
    from tiny_transformers import MAKERS, causal, checkpoint

    from omni_transformers.architectures import table
    from omni_transformers.loading import load_model
    from omni_transformers.recognise.declaration import SAMPLED
    from omni_transformers.words.engine_fit import backend_of
    from omni_transformers.words.recognisers import RECOGNISERS

    architecture = table()[name]
    by_token = "engine" if shared and not alone else "steps"
    if architecture.kind == "speak":
        return {"backend": by_token if _by_frame(name) else "generate", "streams": _streams(name)}
    if architecture.form == "live":
        return {"backend": "engine" if name in SAMPLED else "steps", "streams": "live"}
    if architecture.kind == "recognise":
        return {
            "backend": by_token if architecture.form == "seq2seq" else "generate",
            "streams": "windows" if name.startswith("Whisper") else STREAMS[architecture.form],
        }
    if by_token == "engine" or name in RECOGNISERS:
        return {"backend": by_token, "streams": "tokens"}
    model = load_model(str(checkpoint(name))) if name in MAKERS else causal.model_of(name)
    return {"backend": backend_of(model)[0], "streams": "tokens"}


def _by_frame(name: str) -> bool:
    from omni_transformers.speak.declaration import SPEAKERS

    return SPEAKERS[name].speaker.split(":")[0].endswith((".codes", ".higgs", ".latents"))


def _streams(name: str) -> str:
    return "frames" if _by_frame(name) else "nothing" if name.startswith("Musicgen") else "sentences"


if __name__ == "__main__":
    main()
