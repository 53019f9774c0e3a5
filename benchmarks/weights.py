"""Load time and memory of a thinker whose prepared weights are made (a first start) and mapped (later starts).

    python benchmarks/weights.py [--quick] [--json FILE] [--checkpoint DIR] [--size mid|large]

*Load* is the thinker's, in a process that has imported its modules; the checkpoint's pages are in memory. *Memory* is that of the thinker's
process in the text pipeline after an answer, from /proc: PSS, and the private memory beside its weights, which is what is no page of their
file. The other side are llama.cpp's load and PSS of the same thinker, mapped (0.3.36, whole process), measured on another day.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import click
from attrs import evolve
from engine import LABELS
from report import Row, alone, json_option, publish, quick_option

from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest
from omni_qwen3.pipeline import qwen3_omni_text
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.checkpoints import weight_cache

WAYS: dict[str, tuple[str, str | None, float, float]] = {
    "float32": ("float32", None, 0.03, 413),
    "bfloat16": ("bfloat16", None, 0.05, 280),
    "int8": ("bfloat16", "int8_weight_only", 0.03, 229),
    "int4": ("bfloat16", "int4_weight_only", 0.03, 219),
}
"""Dtype and quantisation, and llama.cpp's seconds and MB of PSS for 270 M in f32, bf16, q8_0 and q4_0."""

LOAD = """
import sys, time
import omni_torch.checkpoints.prepared, omni_torch.checkpoints.weights
from omni_torch.operations.kernel_specs import kernel_specs
from omni_torch.operations.installed_kernels import install
from omni_core.plugins import load_plugins
from omni_qwen3.config import read_config
from omni_qwen3.thinker_network import load_thinker
from omni_torch.quantization.packed_linear import pack_decoder, pack_linears
install({name: [each for each in some if each.device == "cpu"] for name, some in kernel_specs(load_plugins()).items()})
folder, dtype, quantization = sys.argv[1:]
begin = time.perf_counter()
pack_linears(load_thinker(folder, read_config(folder), dtype=dtype, quantization=quantization or None), pack_decoder)
print(time.perf_counter() - begin)
"""


def load(checkpoint: Path, dtype: str, quantization: str | None) -> float:
    """Return the seconds that a process of its own needs to load the thinker."""
    command = [sys.executable, "-c", LOAD, str(checkpoint), dtype, quantization or ""]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def memory(pid: int) -> tuple[float, float]:
    """Return the MB of a process's PSS, and of its private memory without pages of prepared weights."""
    proportional = private = 0
    weights = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            weights = str(weight_cache.folder()) in line
            continue
        name, _, rest = line.partition(":")
        if name == "Pss":
            proportional += int(rest.split()[0])
        elif name in ("Private_Dirty", "Private_Clean") and not (weights and name == "Private_Clean"):
            private += int(rest.split()[0])
    return proportional * 1024 / 1e6, private * 1024 / 1e6


async def serve(checkpoint: Path, dtype: str, quantization: str | None) -> tuple[float, float]:
    """Start the pipeline, ask for 32 tokens, and return the thinker's :func:`memory`."""
    config = qwen3_omni_text(str(checkpoint), dtype=dtype, max_context=2048)
    stages = [
        evolve(stage, factory_args={**stage.factory_args, "quantization": quantization})
        if stage.name == "thinker"
        else stage
        for stage in config.stages
    ]
    config = evolve(config, stages=stages)
    async with open_async(config) as client:
        messages = {"messages": [{"role": "user", "content": "Read this."}]}
        async for _ in client.stream(OmniRequest(messages, {"thinker": {"max_new_tokens": 32, "ignore_eos": True}})):
            pass
        return memory(client.process_ids["thinker"])


@click.command()
@quick_option
@json_option
@click.option(
    "--checkpoint", type=click.Path(exists=True, path_type=Path), help="Default: a random one of size --size."
)
@click.option("--size", type=click.Choice(list(LABELS)), default="mid")
def main(quick: bool, json_path: Path | None, checkpoint: Path | None, size: str) -> None:
    """Prepared weights: load and memory."""
    rounds, rows = 1 if quick else 5, list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        os.environ.pop(weight_cache.VARIABLE, None)
        checkpoint = checkpoint or write_tiny_checkpoint(Path(folder) / size, shape=size)
        load(checkpoint, "float32", None)  # the checkpoint's pages are in memory
        for name, (dtype, quantization, seconds, megabytes) in WAYS.items():
            first, later = [], []
            for _ in range(rounds):
                weight_cache.clear()
                first.append(load(checkpoint, dtype, quantization))
                later.append(load(checkpoint, dtype, quantization))
            whole, beside = zip(
                *(asyncio.run(serve(checkpoint, dtype, quantization)) for _ in range(rounds)), strict=True
            )
            rows.append(alone(f"{name}: load, first start", "s", first))
            rows.append(beside_llama(f"{name}: load, later starts", "s", later, seconds, size))
            rows.append(beside_llama(f"{name}: thinker's PSS", "MB", whole, megabytes, size))
            rows.append(alone(f"{name}: thinker's private memory beside its weights", "MB", beside))
    publish(rows, json_path)


def beside_llama(name: str, unit: str, ours: list[float] | tuple[float, ...], theirs: float, size: str) -> Row:
    if size != "mid":
        return alone(name, unit, ours)
    return Row(name, unit, median(ours), theirs, "llama.cpp", theirs / median(ours))


if __name__ == "__main__":
    main()
