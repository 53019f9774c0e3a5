"""SmolLM2-135M-Instruct: the engine's ids, and what its file's narrow weights change, beside llama.cpp on the same file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from index_packages import gguf_file, widened
from transformers import AutoTokenizer

from omni_core import open_async
from omni_transformers.gguf_files import folder_of, load_linked
from omni_transformers.pipeline import transformers as pipeline

TEXT = "\n".join(topics[name] for name in ("compound", "execmodel", "typesseq"))
"""Pages of Python's language reference."""
PROMPTS, TOKENS = 40, 24
POSITIONS = 250
LIKELIEST = 100


@pytest.fixture(scope="module")
def network(folder: Path) -> Any:
    """transformers' own model of the file, in float32, with its tokenizer."""
    path = gguf_file(folder)
    made = folder_of(str(path))
    model = widened(made, path)
    model.tokenizer = AutoTokenizer.from_pretrained(made)
    return model


def prompts(tokenizer: Any) -> list[str]:
    """Return texts of 20 to 800 tokens."""
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    lengths = [20 + round(780 * number / (PROMPTS - 1)) for number in range(PROMPTS)]
    return [tokenizer.decode(ids[37 * number : 37 * number + length]) for number, length in enumerate(lengths)]


def test_ids_of_the_engine_equal_those_of_transformers(folder: Path, network: Any) -> None:
    """40 prompts, eight at once; where two ids are as likely to within 1e-3, either may come."""
    wide = folder / "smollm2-float32"
    if not (wide / "config.json").exists():
        network.save_pretrained(wide)
        network.tokenizer.save_pretrained(wide)
    asked = prompts(network.tokenizer)

    async def answers() -> list[list[int]]:
        async with open_async(pipeline(str(wide), backend="engine", dtype="float32"), max_in_flight=PROMPTS) as pipe:
            replies = await asyncio.gather(*(pipe.chat(each, temperature=0, max_new_tokens=TOKENS) for each in asked))
            return [reply.outputs["text"].token_ids for reply in replies]

    different = 0
    for text, ours in zip(asked, asyncio.run(answers()), strict=True):
        assert 0 < len(ours) <= TOKENS
        prompt = network.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        with torch.inference_mode():  # greedy ids are those that are the best after all before them
            logits = network(torch.tensor([prompt + ours[:-1]])).logits[0, len(prompt) - 1 :]
        for place, (one, other) in enumerate(zip(ours, logits.argmax(-1).tolist(), strict=True)):
            if one != other:
                assert abs(logits[place, one] - logits[place, other]) < 1e-3, (text, place, ours)
                different += 1
                break
    print(f"\n{PROMPTS - different} of {PROMPTS} prompts have equal ids, {different} part where two are as likely")


def test_narrow_weights_cost_no_more_than_those_of_llama_cpp(folder: Path, network: Any) -> None:
    """Teacher-forced beside float32: the share of equal best tokens, and the divergence over the 100 likeliest and the rest."""
    tokens = network.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    texts = [tokens[start : start + POSITIONS] for start in range(0, 20 * POSITIONS, POSITIONS)]
    narrow = load_linked(type(network), folder_of(str(gguf_file(folder))), gguf_file(folder), torch.float32)
    with torch.inference_mode():
        wide = [network(torch.tensor([each])).logits[0].log_softmax(-1) for each in texts]
        ours = [narrow(torch.tensor([each])).logits[0].log_softmax(-1) for each in texts]
    print()
    agreed, divergence = compared(wide, [each.topk(LIKELIEST) for each in ours])
    print(f"ours: {agreed:.2%} of {len(texts) * POSITIONS} best tokens equal, divergence {divergence:.5f}")
    theirs = llama(gguf_file(folder), texts)
    their_agreed, their_divergence = compared(wide, theirs)
    print(f"llama.cpp: {their_agreed:.2%} equal, divergence {their_divergence:.5f}")
    assert divergence < their_divergence + 1e-3
    assert agreed > their_agreed - 0.005


def compared(wide: list[torch.Tensor], found: list[Any]) -> tuple[float, float]:
    """Return the share of equal best tokens, and the mean Kullback-Leibler divergence of ``found`` from ``wide``.

    Args:
        wide: log-probabilities ``[positions, vocabulary]`` of each text.
        found: the likeliest ones of another network: values and ids ``[positions, 100]``. What is left is one event, so the divergence
            is a lower bound.
    """
    equal, total, count = 0.0, 0.0, 0
    for truth, (values, ids) in zip(wide, found, strict=True):
        equal += float((truth.argmax(-1) == ids[:, 0]).sum())
        known = truth.gather(-1, ids)
        rest, its_rest = ((1 - each.double().exp().sum(-1)).clamp(min=1e-12) for each in (known, values))
        total += float((known.exp() * (known - values)).sum() + (rest * (rest.log() - its_rest.log())).sum())
        count += len(truth)
    return equal / count, total / count


def llama(path: Path, texts: list[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return llama.cpp's likeliest tokens after each position: log-probabilities and ids ``[positions, 100]``."""
    xllamacpp = pytest.importorskip("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 2 * POSITIONS, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    found = []
    for text in texts:
        values, ids = [], []
        for position in range(len(text)):
            asked = {"prompt": text[: position + 1], "n_predict": 1, "n_probs": LIKELIEST, "temperature": 0}
            answer = server.handle_completions({**asked, "cache_prompt": True})
            likeliest = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            values.append([each["logprob"] for each in likeliest])
            ids.append([each["id"] for each in likeliest])
        found.append((torch.tensor(values), torch.tensor(ids)))
    return found
