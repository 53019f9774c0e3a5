"""Trains the three networks and writes one checkpoint in the released layout, in bfloat16."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from transformers import Qwen3OmniMoeForConditionalGeneration
from transformers.utils import logging

from demo_training.speech.code2wav import train_code2wav
from demo_training.speech.shape import complete_config, config, write_files
from demo_training.speech.talker import train_talker
from demo_training.speech.thinker import train_thinker


@frozen
class Steps:
    """Number of training steps of each network."""

    thinker: int
    talker: int
    code2wav: int


def build(folder: Path, steps: Steps, start: Path | None = None) -> Path:
    """Train, or resume training, in ``folder``. Returns the checkpoint ``folder/checkpoint``.

    ``start``: an earlier checkpoint, of which only the thinker is trained further.

    Raises:
        RuntimeError: a training failed; its process has printed why.
    """
    files = folder / "files"
    files.mkdir(parents=True, exist_ok=True)
    logging.set_verbosity_error()  # transformers warns of rope fields that the released config has too
    _write_scaffold(files)
    if start is not None:
        _continue(folder, files, start, steps.thinker)
        return assemble(folder, files)
    context = multiprocessing.get_context("spawn")
    work: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (_train_words, (folder, files, steps)),
        (_train_sound, (folder, steps)),
    ]
    workers = [context.Process(target=target, args=arguments) for target, arguments in work]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode != 0 for worker in workers):
        raise RuntimeError("a training failed; see above; run the same command again to resume")
    return assemble(folder, files)


def _train_words(folder: Path, files: Path, steps: Steps) -> None:
    """Train the thinker, and after it the talker, which reads the thinker's embeddings."""
    _alone()
    thinker = train_thinker(folder, files, steps.thinker)
    embedding = thinker.model.language_model.embed_tokens.weight.detach().clone()
    train_talker(folder, files, embedding, steps.talker)


def _train_sound(folder: Path, steps: Steps) -> None:
    _alone()
    train_code2wav(folder, steps.code2wav)


def _continue(folder: Path, files: Path, start: Path, steps: int) -> None:
    """Train the thinker of ``start`` further; keep the other two networks."""
    _alone()
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
    for name in ("talker", "code2wav"):
        torch.save({"model": model.get_submodule(name).state_dict()}, folder / f"{name}.pt")
    train_thinker(folder, files, steps, model.thinker.state_dict())


def _alone() -> None:
    """Use one thread: two that wait for each other on a busy machine are slower than one, and sums keep their order."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()


def _write_scaffold(files: Path) -> None:
    """Write everything of the checkpoint but its weights."""
    write_files(files)
    config().save_pretrained(files)
    complete_config(files)


def assemble(folder: Path, files: Path) -> Path:
    """Put the trained networks together and save them under the released names."""
    model = Qwen3OmniMoeForConditionalGeneration(config())
    for name in ("thinker", "talker", "code2wav"):
        saved = torch.load(folder / f"{name}.pt", weights_only=True)
        model.get_submodule(name).load_state_dict(saved["model"])
    checkpoint = folder / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(checkpoint, max_shard_size="100MB")
    shutil.copytree(files, checkpoint, dirs_exist_ok=True)
    for path in checkpoint.iterdir():
        path.chmod(0o644)
    settings = json.loads((checkpoint / "config.json").read_text())
    settings["dtype"] = "bfloat16"
    (checkpoint / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    return checkpoint
