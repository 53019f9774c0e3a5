"""A small Qwen3-Omni-shaped checkpoint that answers a fixed set of questions in text and speech."""
