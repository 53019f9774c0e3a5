"""Trains the thinker with both encoders: transformers' own modules on questions in text, pictures and sounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerForConditionalGeneration

from demo_training.speech.examples import Example, Examples
from demo_training.speech.loop import Losses, standard_weights, train
from demo_training.speech.shape import config

STEPS = 1100
_WRITTEN, _SEEN, _HEARD = 12, 8, 12
"""Examples of each kind per step."""
_IGNORED = -100


def train_thinker(
    folder: Path, files: Path, steps: int = STEPS, start: dict[str, torch.Tensor] | None = None
) -> Qwen3OmniMoeThinkerForConditionalGeneration:
    """Train the thinker. ``files``: the checkpoint folder so far, with its config, tokenizer and processor files.

    ``start``: weights to continue from, at a quarter of the rate. The text embeddings then stay as they are, because the talker, which
    was trained with them, reads them too.
    """
    torch.manual_seed(1)
    model = Qwen3OmniMoeThinkerForConditionalGeneration(config().thinker_config)
    standard_weights(model)
    if start is not None:
        model.load_state_dict(start)
        model.model.language_model.embed_tokens.requires_grad_(False)
    examples = Examples(files)

    def step_losses(step: int) -> Losses:
        random = np.random.default_rng(step)
        batch = [examples.written(random) for _ in range(_WRITTEN)]
        batch += [examples.seen(random) for _ in range(_SEEN)]
        batch += [examples.heard(random) for _ in range(_HEARD)]
        inputs, labels = collate(batch)
        logits = model(**inputs).logits[:, :-1]
        each = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), labels[:, 1:], ignore_index=_IGNORED, reduction="none"
        ).sum(1)
        seen, heard = _WRITTEN, _WRITTEN + _SEEN
        parts = {"written": each[:seen].mean(), "seen": each[seen:heard].mean(), "heard": each[heard:].mean()}
        return {"loss": each.mean(), **parts}

    train("thinker", model, step_losses, folder, steps=steps, rate=2e-3 if start is None else 5e-4, weight_decay=0.02)
    return model


def collate(batch: list[Example]) -> tuple[dict[str, Any], torch.Tensor]:
    """Return the model's inputs, padded on the right, and the labels ``[B, L]``: the replies, everything else ignored."""
    whole = [torch.cat([example.ids, example.reply]) for example in batch]
    labels = [torch.cat([torch.full_like(example.ids, _IGNORED), example.reply]) for example in batch]
    positions = [_continued(example) for example in batch]
    inputs: dict[str, Any] = {
        "input_ids": pad_sequence(whole, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(ids) for ids in whole], batch_first=True),
        "position_ids": pad_sequence([each.T for each in positions], batch_first=True).permute(2, 0, 1),
    }
    seen = [example for example in batch if example.pixels is not None]
    if seen:
        inputs["pixel_values"] = torch.cat([example.pixels for example in seen if example.pixels is not None])
        inputs["image_grid_thw"] = torch.cat([example.grid for example in seen if example.grid is not None])
    clips = [clip.T for example in batch for clip in example.clips]
    if clips:
        inputs["input_features"] = pad_sequence(clips, batch_first=True).transpose(1, 2)
        masks = [torch.ones(len(clip), dtype=torch.long) for clip in clips]
        inputs["feature_attention_mask"] = pad_sequence(masks, batch_first=True)
    return inputs, pad_sequence(labels, batch_first=True, padding_value=_IGNORED)


def _continued(example: Example) -> torch.Tensor:
    """Return the positions of prompt and reply, ``[3, P + R]``: the reply continues from the prompt's largest."""
    following = example.positions.max() + 1 + torch.arange(len(example.reply))
    return torch.cat([example.positions, following.expand(3, -1)], dim=1)
