"""Spans for those who trace."""

from __future__ import annotations

import pytest

from harness.conftest import Fixture, Opener, tool
from harness.double import call, error, text


async def test_operations_requests_and_tools_are_nested_spans(lane_of: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the conventions for generative AI, and without any content."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    fixture: Fixture = await lane_of(call("t", n=1), error("busy", kind="overloaded"), text("secret words"), tools=[tool("t")])
    await fixture.lane.prompt("secret prompt")
    spans = {span.name: span for span in exporter.get_finished_spans()}
    root, request, ran = spans["invoke_agent main"], spans["chat scripted"], spans["execute_tool t"]
    assert request.parent.span_id == root.context.span_id
    assert ran.parent.span_id == root.context.span_id
    assert request.attributes["gen_ai.provider.name"] == "test"
    assert request.attributes["gen_ai.usage.output_tokens"] == 5
    assert ran.attributes["gen_ai.tool.name"] == "t"
    everything = repr([(span.name, dict(span.attributes), span.events) for span in exporter.get_finished_spans()])
    assert "secret" not in everything
    assert [span.attributes.get("error.type") for span in exporter.get_finished_spans() if span.name == "chat scripted"] == [None, "overloaded", None]
