"""Qwen2.5-Omni as a pipeline of omni: thinker, talker, and token2wav as a denoising stage and a vocoder."""
