"""The stages start, and answer their first request, without the libraries that take long to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import numpy as np
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_qwen3.code2wav import Vocoder
from omni_qwen3.encoders import AudioEncoder, ImageEncoder
from omni_qwen3.preprocessing import Preprocessor
from omni_media.source import Limits
from omni_qwen3.talker_network import load_talker
from omni_qwen3.thinker_network import load_thinker
from omni_qwen3 import aggregate, decode, talker, talker_feedback, thinker
from omni_qwen3.config import read_config
import torch

folder = sys.argv[1]
decode.create_decode(folder)
parts = [
    {"type": "image", "image": np.zeros((40, 64, 3), np.uint8)},
    {"type": "audio", "samples": np.ones(8000, np.float32), "sample_rate": 16000},
    {"type": "video", "frames": np.zeros((4, 64, 64, 3), np.uint8)},
]
request = OmniRequest({"messages": [{"role": "user", "content": parts}]})
data = Preprocessor(folder, Limits(), video_fps=2.0, max_context=None)(StagePayload("r", request, None))
ImageEncoder(folder, "cpu", "float32", 1)(StagePayload("r", request, data["image"]))
AudioEncoder(folder, "cpu", "float32", 1)(StagePayload("r", request, data["audio"]))
vocoder = Vocoder(folder)
vocoder.decode([(vocoder.begin(), torch.zeros(3, vocoder.codebooks, dtype=torch.int64))])
load_thinker(folder, read_config(folder))
load_talker(folder, read_config(folder))
slow = ("transformers", "scipy", "sklearn", "sympy", "torch._dynamo", "torch._inductor", "torch.distributed.tensor")
print(*[name for name in slow if name in sys.modules])
"""


def test_no_stage_imports_a_library_that_takes_long(tiny: dict[str, Path]) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tiny["a"])], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
