"""Quality of narrow weights on the trained demo: its thinker's logits beside those in float32, over its documented conversations.

    python benchmarks/quantization.py [--json FILE] [--replies]

Every position of a prompt and its reply counts, and has the products of a decode step with this machine's kernels. ``--replies`` asks
every documented prompt of the pipeline too, and counts the replies that are the trained ones. Weights as a stage on a GPU rounds them
are multiplied on the CPU, in float32.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from attrs import evolve
from report import Row, alone, json_option, publish
from torch import nn
from transformers import AutoTokenizer

from demo_training.speech import report
from omni_core.client import open_async
from omni_core.model_runner import ForwardBatch
from omni_core.plugins import load_plugins
from omni_demo.speech.pipeline import CHECKPOINT, demo
from omni_qwen3.config import read_config
from omni_qwen3.thinker_network import Thinker, load_thinker, metadata_of
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs
from omni_torch.quantization import quantized_linear
from omni_torch.quantization.packed_linear import pack_decoder, pack_linears
from omni_torch.quantization.quantized_linear import QUANTIZATIONS
from omni_torch.quantization.scaled_linear import ALIGNMENT, GPU_QUANTIZATIONS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))
from quantized_checkpoints import write_gguf, write_quantized, write_scaled

WAYS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    # The one that rounds nothing has the logits of bfloat16.
    **{name: {"quantization": name} for name in QUANTIZATIONS if name != "bfloat16_lossless"},
}

LAYERS = r"^thinker\.model\.layers\.\d+\.(self_attn|mlp)\..*(?<!embed)_proj\.weight$"

STORED: dict[str, dict[str, Any]] = {
    f"{method}, groups of {group}{', zero points' if not symmetric else ''}": {
        "method": method,
        "group": group,
        "symmetric": symmetric,
    }
    for method, group, symmetric in (("gptq", 32, True), ("gptq", 32, False), ("awq", 64, False))
}
"""Checkpoints in 4 bits, made here by rounding to the nearest value; the tools of these formats choose better ones."""

GGUF = ("Q8_0", "Q4_0")
"""Types of the matrices of a GGUF file, the head's included."""


def attend(
    layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Causal attention within one conversation: ``[n, heads, head_dim]``."""
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)[0].transpose(0, 1)


SCALED: dict[str, dict[str, Any]] = {
    "fp8 in blocks of 128": {},
    "fp8 per output": {"method": "compressed-tensors", "strategy": "channel"},
}
"""Checkpoints in 8 bits with scales; the demo's matrices have 128 inputs, so that a block is 128 outputs of all of them."""


def rounded(weight: torch.Tensor, bias: torch.Tensor | None, name: str) -> nn.Module | None:
    """Return the layer that a stage on a GPU makes of a weight."""
    fits = weight.numel() >= quantized_linear.LEAST_VALUES and weight.shape[1] % ALIGNMENT == 0
    return GPU_QUANTIZATIONS[name](weight, bias) if fits else None


def load(
    dtype: str = "float32",
    quantization: str | None = None,
    folder: Path = CHECKPOINT,
    gguf: str | None = None,
    on_gpu: str | None = None,
) -> Thinker:
    model = load_thinker(str(folder), read_config(str(folder)), dtype=dtype, quantization=quantization, gguf=gguf)
    if on_gpu is not None:
        pack_linears(model, partial(rounded, name=on_gpu))
    pack_linears(model, pack_decoder)
    return model


@torch.inference_mode()
def logits_of(model: Thinker, ids: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(len(ids)).expand(3, -1)
    batch = ForwardBatch(
        requests=[], starts=[0], lengths=[len(ids)], input_ids=ids, input_embeds=model.embed(ids), positions=positions,
        attention=attend, sample_rows=torch.arange(len(ids)), sampled=[],
    )  # fmt: skip
    return model.compute_logits(model(batch).hidden).double()


def conversations() -> list[torch.Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    made = []
    for asked in report.documented():
        turns = [{"role": "user", "content": asked.name}, {"role": "assistant", "content": asked.reply}]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        made.append(torch.tensor(tokenizer(text)["input_ids"]))
    return made


def beside(name: str, made: torch.Tensor, right: torch.Tensor) -> list[Row]:
    divergence = F.kl_div(made.log_softmax(-1), right.log_softmax(-1), log_target=True, reduction="none").sum(-1)
    figures = {
        "relative error of logits": (100 * float((made - right).norm() / right.norm()), "%"),
        "mean KL divergence": (1000 * float(divergence.mean()), "1e-3 nats"),
        "same best token": (100 * float((made.argmax(-1) == right.argmax(-1)).double().mean()), "%"),
    }
    return [alone(f"{name}: {what}", unit, [value]) for what, (value, unit) in figures.items()]


async def right_replies(model: Path, options: dict[str, Any]) -> float:
    """Return the percentage of documented prompts that get their reply, with these options of the thinker."""
    config = demo(str(model), processes="one")
    stages = [
        evolve(stage, factory_args={**stage.factory_args, **options}) if stage.name == "thinker" else stage
        for stage in config.stages
    ]
    asked = report.documented()
    async with open_async(evolve(config, stages=stages)) as client:
        replies = await asyncio.gather(*(report.answer(client, each, speech=False) for each in asked))
    return 100 * sum(said == each.reply for each, (said, _) in zip(asked, replies, strict=True)) / len(asked)


@click.command()
@json_option
@click.option("--replies", is_flag=True, help="Count right replies of the pipeline too.")
def main(json_path: Path | None, replies: bool) -> None:
    """Logits of narrow weights beside float32."""
    install({name: some for name, some in kernel_specs(load_plugins()).items() if name == "few_rows_linear"})
    quantized_linear.FEW_ROWS = 1 << 20  # inputs in 8 bits for all positions, as in steps that decode them one by one
    plain, texts, rows = load(), conversations(), []
    right = torch.cat([logits_of(plain, ids) for ids in texts])
    with tempfile.TemporaryDirectory() as made_here:
        ways = {name: (CHECKPOINT, options) for name, options in WAYS.items()}
        for name, options in STORED.items():
            write_quantized(CHECKPOINT, Path(made_here) / name, LAYERS, **options)
            ways[name] = (Path(made_here) / name, {})
        for kind in GGUF:
            path, metadata = Path(made_here) / f"{kind}.gguf", metadata_of(read_config(CHECKPOINT).thinker)
            write_gguf(CHECKPOINT, path, kind, metadata, prefix="thinker.")
            ways[f"GGUF, {kind}"] = (CHECKPOINT, {"gguf": str(path)})
        for name in GPU_QUANTIZATIONS:
            ways[f"{name} of a GPU"] = (CHECKPOINT, {"on_gpu": name})
        for name, options in SCALED.items():
            folder = Path(made_here) / name
            write_scaled(CHECKPOINT, folder, LAYERS, **options)
            ways[name] = (folder, {})
            ways[f"{name}, as float8_weight_only"] = (folder, {"on_gpu": "float8_weight_only"})
        for name, (folder, options) in ways.items():
            model = load(folder=folder, **options)
            rows += beside(name, torch.cat([logits_of(model, ids) for ids in texts]), right)
            if replies and "on_gpu" not in options:
                rows.append(alone(f"{name}: right replies", "%", [asyncio.run(right_replies(folder, options))]))
    click.echo(f"{len(right)} positions")
    publish(rows, json_path)


if __name__ == "__main__":
    main()
