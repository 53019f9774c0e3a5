"""Models that write text of text."""

from __future__ import annotations

from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

from tiny_transformers import byte_tokenizer, maker

SIZES = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IDS = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}


@maker("LlamaForCausalLM")
def llama(folder: Path) -> None:
    LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **SIZES, **IDS)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
