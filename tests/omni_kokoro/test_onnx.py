"""A file of ONNX, with a stand-in for onnxruntime."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from omni_core.api import ConfigError, InvalidRequestError
from omni_kokoro.checkpoint import weights_file
from omni_kokoro.onnx import OnnxNetwork
from omni_kokoro.sentence import Sentence

SENTENCE = Sentence([5, 6], np.ones(256, np.float32), 1.5)


class Session:
    inputs: ClassVar[Any] = {"input_ids": "tensor(int64)", "style": "tensor(float)", "speed": "tensor(float)"}
    durations = True

    def __init__(self, path: str, options: Any, providers: list[str]) -> None:
        if not Path(path).read_bytes():
            raise ValueError("empty")

    def get_inputs(self) -> list[Any]:
        return [types.SimpleNamespace(name=name, type=kind) for name, kind in self.inputs.items()]

    def run(self, names: Any, given: dict[str, Any]) -> list[Any]:
        self.given = {name: (each.shape, each.dtype.name) for name, each in given.items()}
        return [np.full((1, 2400), 1.5, np.float32), *([np.array([1, 1, 1, 1])] if self.durations else [])]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.ModuleType:
    module = types.ModuleType("onnxruntime")
    module.InferenceSession, module.SessionOptions = type("Own", (Session,), {}), types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    return module


def test_a_sentence_is_spoken(runtime: Any, tmp_path: Path) -> None:
    network = OnnxNetwork(tmp_path, "model.onnx")
    [spoken] = network.speak([SENTENCE])
    assert network._session.given == {
        "input_ids": ((1, 4), "int64"),
        "style": ((1, 256), "float32"),
        "speed": ((1,), "float32"),
    }
    assert (len(spoken.samples), spoken.samples.max(), spoken.durations.tolist()) == (2400, 1.0, [1, 1, 1, 1])


def test_older_files_name_their_input_otherwise_and_tell_no_durations(runtime: Any, tmp_path: Path) -> None:
    own = runtime.InferenceSession
    own.inputs = {"tokens": "tensor(int64)", "style": "tensor(float)", "speed": "tensor(int32)"}
    own.durations = False
    network = OnnxNetwork(tmp_path, "model.onnx")
    with pytest.raises(InvalidRequestError, match="whole numbers"):
        network.speak([SENTENCE])
    [spoken] = network.speak([Sentence([5], SENTENCE.style, 2.0)])
    assert len(spoken.durations) == 0


def test_another_file_is_refused(runtime: Any, tmp_path: Path) -> None:
    runtime.InferenceSession.inputs = {"pixels": "tensor(float)"}
    with pytest.raises(ConfigError, match="its inputs are pixels"):
        OnnxNetwork(tmp_path, "model.onnx")
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"model\.onnx cannot be read"):
        OnnxNetwork(tmp_path, "model.onnx")


def test_without_onnxruntime_the_error_says_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"omni-kokoro\[onnx\]"):
        OnnxNetwork(tmp_path, "model.onnx")


def test_the_file_of_weights_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no weights"):
        weights_file(tmp_path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/model_quantized.onnx").touch()
    assert weights_file(tmp_path) == "onnx/model_quantized.onnx"
    (tmp_path / "kokoro-v1_0.pth").touch()
    assert weights_file(tmp_path) == "kokoro-v1_0.pth"
    assert weights_file(tmp_path, "onnx/model_quantized.onnx") == "onnx/model_quantized.onnx"
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"kokoro-v1_0\.pth, model\.safetensors; choose one"):
        weights_file(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        weights_file(tmp_path, "other.pth")
