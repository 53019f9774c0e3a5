"""Text by ``generate()`` in turns: the same ids as alone, whatever else runs."""

from __future__ import annotations

import torch
from tiny_transformers import checkpoint, writers
from transformers import AutoModelForCausalLM, AutoTokenizer

from omni_core.api import OmniRequest, open_async
from omni_transformers.pipeline import transformers

assert writers


def reference(folder: str, text: str, tokens: int) -> list[int]:
    """Return the ids of transformers' own greedy ``generate()``."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    with torch.inference_mode():
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
    found: list[int] = ids[0, inputs["input_ids"].shape[1] :].tolist()
    return found
