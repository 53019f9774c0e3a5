"""Mistakes that type checkers find, one on each line that ends in ``# wrong``. It is not run."""

# ruff: noqa: B018

from __future__ import annotations

import omni_core as omni
from omni_fish_s2.pipeline import fish_s2
from omni_qwen3.pipeline import qwen3_omni


def mistakes(pipe: omni.Pipe, other: omni.AsyncPipe) -> None:
    omni.open("demo", max_inflight=3)  # wrong
    omni.open("demo", retries="two")  # wrong
    pipe.chat(3)  # wrong
    pipe.chat("hi", timeout="soon")  # wrong
    pipe.chat("hi").txt  # wrong
    pipe.chat("hi", stream=True).text  # wrong
    other.chat("hi").text  # wrong
    omni.Pip  # wrong
    qwen3_omni("folder", dtpye="bfloat16")  # wrong
    qwen3_omni("folder", dtype="bf16")  # wrong
    fish_s2("folder", processes="two")  # wrong
