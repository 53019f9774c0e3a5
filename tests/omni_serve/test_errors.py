"""Errors of the pipeline as a client sees them."""

from __future__ import annotations

import pytest

from omni_core.errors import InvalidRequestError, RequestFailedError, RequestTooLargeError
from omni_serve.errors import api_error


@pytest.mark.parametrize(
    ("error_type", "status", "code", "retry"),
    [
        ("ValueError", 500, "stage_failed", "false"),
        ("ProcessDied", 503, "unit_restarting", "true"),
        ("PeerDiedError", 503, "unit_restarting", "true"),
        ("StageFailedError", 503, "unit_failed", "true"),
    ],
)
def test_a_request_may_be_repeated_if_its_process_has_died(error_type: str, status: int, code: str, retry: str) -> None:
    made = api_error(RequestFailedError("1", "speak", error_type, "it was killed"))
    assert (made.status, made.code, made.headers["x-should-retry"]) == (status, code, retry)
    assert "speak" in (made.details.get("unit"), made.details.get("stage"))
    assert "it was killed" in made.message
    assert ("retry-after" in made.headers) == (status == 503)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("messages[0].content[1] (image): damaged"), 400, "invalid_value"),
        (RequestTooLargeError("messages[0].content[1] (image): 9 pixels are over the limit"), 413, "too_large"),
    ],
)
def test_what_is_over_a_limit_has_a_status_of_its_own(error: InvalidRequestError, status: int, code: str) -> None:
    made = api_error(error)
    assert (made.status, made.code, made.param) == (status, code, "messages[0].content[1]")
    assert made.message == str(error)
