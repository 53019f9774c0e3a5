"""The runners over the engine's toy model keep the contract; ``wrong_runners`` adds mistakes to them, which are caught."""

from __future__ import annotations

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
