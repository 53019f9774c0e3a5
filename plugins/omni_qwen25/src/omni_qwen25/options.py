"""The types of the pipelines' options, for type checkers; :data:`omni_qwen25.interface.OPTIONS` describes them."""

from __future__ import annotations

from omni_qwen3.options import TextOptions

__all__ = ["Options"]

Options = TextOptions
