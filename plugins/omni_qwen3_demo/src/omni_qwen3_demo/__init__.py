"""A small Qwen3-Omni-shaped checkpoint that answers a closed set of questions in words and in speech."""
