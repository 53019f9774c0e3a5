"""Eight requests on the engine whose texts are held to a structure, beside eight free ones.

    python benchmarks/structured.py [--quick] [--json FILE] [--threads N]

A Llama of 120 M with random weights and a byte-level vocabulary of 151,000 tokens; 64 tokens of each request, sampled, after warm-up:
the grammars are compiled. The last row is the rate of four free requests beside four held ones.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from report import Row, compare, json_option, publish, quick_option
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from omni_core.api import ARRequest, IncomingMessage, OmniRequest, SamplingParams, Scheduler, StagePayload
from omni_torch.api import Constraints, sample
from omni_transformers.words.engine import create_answer
from omni_transformers.words.engine_prompts import Prompt

CONCURRENT, VOCABULARY = 8, 151_000

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "mood": {"enum": ["good", "bad"]},
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 100}]},
    },
    "required": ["name", "age", "mood", "note"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "JSON schema": {"json_schema": {"schema": {"type": "array", "items": PERSON, "minItems": 500}}},
    "any JSON": {"json_schema": {"schema": {"type": "array", "minItems": 500}}},
    "expression": {"regex": "([A-Za-z]{1,12}[ ,.]){4000}"},
}


def write_checkpoint(folder: Path) -> str:
    """Write a model whose vocabulary is as large as those of released ones."""
    chance, alphabet = random.Random(0), sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [each for each in alphabet if each.isalnum()] + ["Ġ", '"', "{", "}", ",", ":"]
    vocabulary, merges, known = (
        {each: number for number, each in enumerate(alphabet)},
        list[tuple[str, str]](),
        [*letters],
    )
    while len(vocabulary) < VOCABULARY - 1:
        pair = chance.choice(known), chance.choice(letters)
        if (joined := "".join(pair)) not in vocabulary and len(joined) <= 10:
            vocabulary[joined] = len(vocabulary)
            merges.append(pair)
            known.append(joined)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", chat_template="{{ messages }}")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
        num_key_value_heads=2, eos_token_id=VOCABULARY - 1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


def rate(stage: Scheduler, requests: list[dict[str, Any]], tokens: int, counted: range) -> float:
    """Return the tokens per second of the ``counted`` ones of some requests, which begin at once."""
    ended: dict[str, tuple[float, int]] = {}
    done = threading.Event()

    def take() -> None:
        for message in stage.outbox.drain():
            if message.type == "error":
                raise message.data
            if message.type == "result":
                ended[message.request_id] = time.perf_counter(), message.data.usage["completion_tokens"]
        if len(ended) == len(requests):
            done.set()

    stage.outbox.on_put = take
    begin = time.perf_counter()
    for number, params in enumerate(requests):
        asked = {"max_new_tokens": tokens, "temperature": 1.0, "seed": number, **params}
        payload = StagePayload(
            str(number), OmniRequest(params={"answer": asked}), Prompt([7, 8, 9, 10 + number]).sent()
        )
        stage.inbox.put(IncomingMessage(str(number), "new_request", payload))
    done.wait()
    found = [ended[str(number)] for number in counted]
    return sum(count for _, count in found) / (max(at for at, _ in found) - begin)


def thread_ms(call: Callable[[], object], times: int = 20) -> float:
    """Return the CPU milliseconds of a call in this thread."""
    call()
    begin = time.thread_time()
    for _ in range(times):
        call()
    return 1e3 * (time.thread_time() - begin) / times


def sampling(folder: str, rounds: int) -> list[Row]:
    """Measure CPU time alone: what the choice of eight tokens costs with masks that are computed, and without."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder).backend_tokenizer
    constraints = Constraints(lambda: tokenizer, VOCABULARY, [VOCABULARY - 1])
    logits = torch.randn(CONCURRENT, VOCABULARY)

    def requests(structured: dict[str, Any] | None) -> list[ARRequest]:
        made = []
        for number in range(CONCURRENT):
            constraint = constraints.begin(structured, "params")
            params = SamplingParams(temperature=1.0, seed=number)
            made.append(ARRequest(str(number), OmniRequest(), [1], params, constraint=constraint))
        return made

    held, free = requests(KINDS["JSON schema"]), requests(None)
    pairs = [(thread_ms(lambda: sample(logits, held)), thread_ms(lambda: sample(logits, free))) for _ in range(rounds)]
    mine, theirs = zip(*pairs, strict=True)
    return [compare(f"choice of {CONCURRENT} tokens, CPU", "ms", mine, theirs, "free", higher_is_better=False)]


@click.command()
@quick_option
@json_option
@click.option("--threads", type=click.IntRange(1), default=1)
def main(quick: bool, json_path: Path | None, threads: int) -> None:
    """Structured texts beside free ones."""
    torch.set_num_threads(threads)
    rounds, tokens, every = (3, 24, range(CONCURRENT)) if quick else (5, 64, range(CONCURRENT))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        stage = create_answer(write_checkpoint(Path(folder)), backend="engine")
        threading.Thread(target=stage.start, daemon=True).start()
        free: list[dict[str, Any]] = [{}] * CONCURRENT
        rate(stage, free, 8, every)
        for kind, structured in KINDS.items():
            held = [{"structured": structured}] * CONCURRENT
            rate(stage, held, 8, every)
            pairs = [(rate(stage, held, tokens, every), rate(stage, free, tokens, every)) for _ in range(rounds)]
            mine, theirs = zip(*pairs, strict=True)
            rows.append(
                compare(f"{CONCURRENT} requests, {kind}", "tokens/s", mine, theirs, "free", higher_is_better=True)
            )
        half = CONCURRENT // 2
        mixed = [{}] * half + [{"structured": KINDS["JSON schema"]}] * half
        pairs = [
            (rate(stage, mixed, tokens, range(half)), rate(stage, free, tokens, range(half))) for _ in range(rounds)
        ]
        mine, theirs = zip(*pairs, strict=True)
        name = f"{half} free requests beside {half} held ones"
        rows.append(compare(name, "tokens/s", mine, theirs, "beside free ones", higher_is_better=True))
        stage.stop()
        rows += sampling(folder, rounds)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
