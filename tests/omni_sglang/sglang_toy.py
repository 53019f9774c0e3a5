"""The engine's toy model, with the number of query heads that SGLang needs."""

from __future__ import annotations

from attrs import evolve
from toy_model import HEADS, ToyModel

MODEL = ToyModel()
MODEL.kv_layout = evolve(MODEL.kv_layout, heads=HEADS)
