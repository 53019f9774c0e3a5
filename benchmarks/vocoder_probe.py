"""Decodes chunks of frames with one vocoder at each line of standard input, and prints milliseconds of CPU time per chunk as JSON:
``python vocoder_probe.py MODULE CHECKPOINT DTYPE STREAMS CHUNK...``.

Run by ``vocoder.py`` with this environment's interpreter and with that of another one, so it uses what both versions have.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module

import torch

from omni_core.plugins import load_plugins
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs


def main(module: str, checkpoint: str, dtype: str, streams: int, chunks: list[int]) -> None:
    torch.set_num_threads(1)
    kernels = kernel_specs(load_plugins())
    install({name: [each for each in some if each.device == "cpu"] for name, some in kernels.items()})
    vocoder = import_module(module).Vocoder(checkpoint, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    frames = [
        [
            torch.randint(0, vocoder.codebook_size, (count, vocoder.codebooks), generator=generator)
            for _ in range(streams)
        ]
        for count in chunks
    ]

    def decode() -> list[float]:
        states, took = [vocoder.begin() for _ in range(streams)], []
        for chunk in frames:
            begin = time.process_time()
            vocoder.decode(list(zip(states, chunk, strict=True)))
            took.append(1000 * (time.process_time() - begin))
        return took

    decode()
    print("[]", flush=True)
    while sys.stdin.readline():
        print(json.dumps(decode()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), [int(each) for each in sys.argv[5:]])
