"""Qwen3-Omni for omni: the pipeline, its stages, and a tiny checkpoint to try them with."""
