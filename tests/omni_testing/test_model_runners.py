"""The runners over the engine's toy model keep the contract; ``wrong_runners`` adds mistakes to them, which are caught."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "omni_torch/engine"))
sys.path.insert(0, str(Path(__file__).parent))

from right_runners import FeedbackRequests, Requests, StreamedRequests

from omni_testing import FeedbackConformance, ModelRunnerConformance


class TestToy(Requests, ModelRunnerConformance):
    pass


class TestFeedback(FeedbackRequests, ModelRunnerConformance):
    pass


class TestStreamedFeedback(StreamedRequests, ModelRunnerConformance):
    pass


class TestStrategy(FeedbackRequests, FeedbackConformance):
    pass


class TestStreamedStrategy(StreamedRequests, FeedbackConformance):
    pass
