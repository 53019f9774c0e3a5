"""Parts for the stages of Qwen3-Omni."""
