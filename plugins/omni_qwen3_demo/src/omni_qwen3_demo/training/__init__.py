"""Trains the checkpoint from scratch: data, three networks, and the check by a speech recogniser. ``python -m
omni_qwen3_demo.training FOLDER``.
"""
