"""OpenTelemetry spans are made only where an application uses it and omni-commands is installed."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from omni_core.observe import telemetry
from omni_core.plugins import PluginRegistry


class NoProvider:
    """Stands for those of OpenTelemetry's API alone."""


def api(provider: object) -> SimpleNamespace:
    return SimpleNamespace(
        get_tracer_provider=lambda: provider, NoOpTracerProvider=NoProvider, ProxyTracerProvider=NoProvider
    )


def test_no_spans_without_an_api_or_a_provider_that_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert telemetry.telemetry("p") is None
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api(NoProvider()))  # type: ignore[arg-type]
    assert telemetry.telemetry("p") is None


def test_a_provider_without_the_service_is_a_warning_that_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    provider = SimpleNamespace(get_tracer=lambda name, version: object())
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api(provider))  # type: ignore[arg-type]
    assert type(telemetry.telemetry("p")).__name__ == "RequestSpans"
    monkeypatch.setattr("omni_core.services.load_plugins", lambda: PluginRegistry([]))
    with caplog.at_level(logging.WARNING):
        assert telemetry.telemetry("p") is None
    assert "pip install omni-commands" in caplog.text
