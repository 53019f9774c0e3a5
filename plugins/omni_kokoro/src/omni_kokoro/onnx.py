"""A network in a file of ONNX, such as those with weights of 8 bits, computed by onnxruntime: an extra."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.api import ConfigError, InvalidRequestError
from omni_kokoro.sentence import Sentence, Spoken
from omni_torch.api import checked_file, load_checked

_KINDS = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(float16)": np.float16,
}
_FRACTIONS = (np.float16, np.float32, np.float64)


class OnnxNetwork:
    """Speaks sentence by sentence: the published files take one at a time.

    Their noise is onnxruntime's own, so a ``seed`` has no effect, and two calls differ by it. Word times come only from files that have
    an output of durations.

    Raises:
        ConfigError: onnxruntime is not installed, or the file is not a Kokoro's.
    """

    def __init__(self, folder: str | Path, file: str) -> None:
        try:
            onnxruntime: Any = import_module("onnxruntime")
        except ImportError as error:
            raise ConfigError(f"{file}: files of ONNX need onnxruntime: pip install 'omni-kokoro[onnx]'") from error
        path = checked_file(Path(folder) / file)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
        made = lambda: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])  # noqa: E731
        self._session: Any = load_checked(str(path), made)
        inputs = {each.name: each.type for each in self._session.get_inputs()}
        self._ids = "tokens" if "tokens" in inputs else "input_ids"  # as older files call it
        if self._ids not in inputs or not {"style", "speed"} <= inputs.keys() or len(inputs) != 3:
            raise ConfigError(f"{path}: its inputs are {', '.join(inputs)}; those of a Kokoro: input_ids, style, speed")
        self._kinds: dict[str, Any] = {name: _KINDS.get(kind, np.float32) for name, kind in inputs.items()}

    def speak(self, sentences: list[Sentence]) -> list[Spoken]:
        """Return the sound of sentences."""
        return [self._one(each) for each in sentences]

    def _one(self, sentence: Sentence) -> Spoken:
        if self._kinds["speed"] not in _FRACTIONS and sentence.speed != int(sentence.speed):
            raise InvalidRequestError(f"params.speech.speed: this file takes whole numbers, is {sentence.speed}")
        given = {self._ids: [[0, *sentence.ids, 0]], "style": sentence.style[None], "speed": [sentence.speed]}
        found = self._session.run(None, {name: np.asarray(value, self._kinds[name]) for name, value in given.items()})
        samples = np.clip(np.asarray(found[0], np.float32).reshape(-1), -1.0, 1.0)
        durations = found[1].reshape(-1) if len(found) > 1 else np.zeros(0)
        return Spoken(
            samples, durations.astype(np.int64) if len(durations) == len(sentence.ids) + 2 else np.zeros(0, np.int64)
        )
