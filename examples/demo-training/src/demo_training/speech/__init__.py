"""Trains the checkpoint from scratch: data, three networks, and the check by a speech recogniser. ``python -m
demo_training.speech FOLDER``.
"""
