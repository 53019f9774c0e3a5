"""A Llama of 100 M with random weights: tokens per CPU second by omni-transformers' engine beside transformers' own ``generate()``.

    OMP_NUM_THREADS=1 python benchmarks/words.py [--quick] [--json FILE] [--tokens 64]

Both compute the same requests greedily, in turns, in one process and one thread: the engine's loop with its detokeniser, and calls of
``generate()``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from report import Row, compare, json_option, publish, quick_option
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from omni_core.api import IncomingMessage, OmniRequest, StagePayload
from omni_core.plugins import load_plugins
from omni_torch.api import EngineScheduler
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs
from omni_transformers.words.engine import Answers
from omni_transformers.words.engine_fit import fitted
from omni_transformers.words.engine_prompts import Prompt

PROMPT, MANY, VOCABULARY = 64, 8, 8192
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 14,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
}


def made() -> Any:
    """Return the model; every call returns an equal one."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval().requires_grad_(False)


def timed(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call, over all threads."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def generate(model: Any, prompts: list[list[int]], tokens: int, together: bool) -> None:
    """Call ``generate()`` for each prompt, or once for all."""
    for each in [prompts] if together else [[prompt] for prompt in prompts]:
        ids = torch.tensor(each)
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0)


def serve(engine: EngineScheduler, prompts: list[list[int]], tokens: int) -> None:
    """Ask for all at once, and wait for the last answer."""
    for number, ids in enumerate(prompts):
        request = OmniRequest(None, {"answer": {"max_new_tokens": tokens}})
        engine.inbox.put(
            IncomingMessage(str(number), "new_request", StagePayload(str(number), request, Prompt(ids).sent()))
        )
    left = len(prompts)
    while left:
        message = engine.outbox.get(600)
        if message is None or message.type == "error":
            raise SystemExit(f"no answer: {message}")
        left -= message.type == "result"


@click.command()
@quick_option
@json_option
@click.option("--tokens", default=64, help="Tokens of an answer.")
@click.option("--kernels/--no-kernels", default=True, help="With the installed kernels for CPUs.")
def main(quick: bool, json_path: Path | None, tokens: int, kernels: bool) -> None:
    """Measure, in turns."""
    rounds, tokens = (2, min(tokens, 24)) if quick else (5, tokens)
    if kernels:
        install(
            {
                name: [each for each in some if each.device == "cpu"]
                for name, some in kernel_specs(load_plugins()).items()
            }
        )
    own = made()
    vocabulary = {f"w{number} ": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, "w0 ")))
    engine = EngineScheduler(Answers(fitted(made()), tokenizer, {}), kv_cache_mb=128, prefix_cache=False)
    thread = threading.Thread(target=engine.start, daemon=True)
    thread.start()
    random = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, VOCABULARY, (MANY, PROMPT), generator=random).tolist()
    rows: list[Row] = []
    cases = [
        ("one request", prompts[:1], False, "generate()"),
        ("eight requests", prompts, False, "eight calls of generate()"),
        ("eight requests, beside a batch", prompts, True, "one call of generate()"),
    ]
    with torch.inference_mode():
        serve(engine, prompts[:1], 2)
        generate(own, prompts[:1], 2, together=False)
        for name, asked, together, other in cases:
            both = partial(serve, engine, asked, tokens), partial(generate, own, asked, tokens, together)
            seconds = [[timed(call) for call in both] for _ in range(rounds)]
            ours, its = ([len(asked) * tokens / each for each in side] for side in zip(*seconds, strict=True))
            rows.append(compare(name, "tokens/CPU s", ours, its, other, higher_is_better=True))
    engine.stop()
    thread.join()
    publish(rows, json_path)


if __name__ == "__main__":
    main()
