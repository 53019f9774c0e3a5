"""Qwen3-TTS as a pipeline."""
