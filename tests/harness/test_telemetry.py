"""Spans for those who trace, and nothing at all for those who do not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.conftest import Opener, tool
from harness.double import call, error, text
from laneway import Context
from laneway.harness import PatchResult
from laneway.messages import TextContent

sdk = pytest.importorskip("opentelemetry.sdk.trace")
trace = pytest.importorskip("opentelemetry.trace")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a process that has set a provider exports."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def spans_of(exporter: Any) -> dict[str, Any]:
    """The spans by name, the last of each."""
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_operations_requests_and_tools_are_nested_spans(lane_of: Opener, exporter: Any) -> None:
    """By the conventions for generative AI, and without any content."""
    fixture = await lane_of(call("t", n=1), error("busy", kind="overloaded"), text("secret words"), tools=[tool("t", lambda args: "secret result")])
    await fixture.lane.prompt("secret prompt")
    spans = spans_of(exporter)
    root, request, ran = spans["invoke_agent main"], spans["chat scripted"], spans["execute_tool t"]
    assert request.parent.span_id == root.context.span_id
    assert ran.parent.span_id == root.context.span_id
    assert (root.kind.name, request.kind.name, ran.kind.name) == ("INTERNAL", "CLIENT", "INTERNAL")
    assert request.attributes["gen_ai.provider.name"] == "test"
    assert request.attributes["gen_ai.usage.output_tokens"] == 5
    assert ran.attributes["gen_ai.tool.name"] == "t"
    everything = repr([(span.name, dict(span.attributes), span.events) for span in exporter.get_finished_spans()])
    assert "secret" not in everything
    requests = [span for span in exporter.get_finished_spans() if span.name == "chat scripted"]
    assert [span.attributes.get("error.type") for span in requests] == [None, "overloaded", None]
    assert [span.status.status_code.name for span in requests] == ["UNSET", "ERROR", "UNSET"]


async def test_a_failed_tool_is_a_failed_span(lane_of: Opener, exporter: Any) -> None:
    """The run goes on; the span says what happened to the call."""

    def broken(args: Any) -> str:
        raise ValueError("secret")

    fixture = await lane_of(call("t"), text("ok"), tools=[tool("t", broken)])
    await fixture.lane.prompt("go")
    span = spans_of(exporter)["execute_tool t"]
    assert (span.attributes["error.type"], span.status.status_code.name, span.status.description) == ("tool_error", "ERROR", None)


async def test_content_is_recorded_where_it_is_asked_for(lane_of: Opener, exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the switch that all instrumentations of this kind know; results are recorded as `after_tool` leaves them."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "span_only")
    fixture = await lane_of(call("t", n=1, call_id="c1"), text("done"), tools=[tool("t", lambda args: "the secret")], system_prompt="be brief")
    fixture.harness.hooks.on("after_tool", lambda event: PatchResult(content=[TextContent(text="the ***")]))
    await fixture.lane.prompt("go")
    spans = spans_of(exporter)
    sent, said = (json.loads(spans["chat scripted"].attributes[f"gen_ai.{way}.messages"]) for way in ("input", "output"))
    assert sent == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {"role": "user", "parts": [{"type": "text", "content": "go"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "t", "arguments": {"n": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "the ***"}]},
    ]
    assert said == [{"role": "assistant", "parts": [{"type": "text", "content": "done"}], "finish_reason": "stop"}]
    ran = spans["execute_tool t"].attributes
    assert (json.loads(ran["gen_ai.tool.call.arguments"]), ran["gen_ai.tool.call.result"]) == ({"n": 1}, "the ***")


async def test_a_context_is_the_parent_of_the_pass_that_it_starts(lane_of: Opener, exporter: Any) -> None:
    """Decision 17: a span that came with a request, from another process even; without one, the ambient span."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    fixture = await lane_of(text("a"), text("b"), text("c"))
    far = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await fixture.lane.prompt("one", context=Context(telemetry=TraceContextTextMapPropagator().extract({"traceparent": far})))
    root = spans_of(exporter)["invoke_agent main"]
    assert (root.context.trace_id, root.parent.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    await fixture.lane.prompt("two")
    assert spans_of(exporter)["invoke_agent main"].parent is None
    with trace.get_tracer_provider().get_tracer("mine").start_as_current_span("mine") as mine:
        await fixture.lane.prompt("three")
    assert spans_of(exporter)["invoke_agent main"].parent.span_id == mine.get_span_context().span_id


async def test_a_drive_that_is_joined_keeps_its_parent(lane_of: Opener, exporter: Any) -> None:
    """Decision 17: the spans of a pass belong to whoever started it."""
    gate = asyncio.Event()
    fixture = await lane_of(text("a", gate=gate))
    running = asyncio.ensure_future(fixture.lane.prompt("one"))
    while not fixture.script.requests:
        await asyncio.sleep(0)
    tracer = trace.get_tracer_provider().get_tracer("mine")
    late = trace.set_span_in_context(tracer.start_span("late"))
    joined = asyncio.ensure_future(fixture.lane.resume(context=Context(telemetry=late)))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(running, joined)
    assert spans_of(exporter)["invoke_agent main"].parent is None


# ---------------------------------------------------------------------------------------------------- real processes

RUN = """
import asyncio, sys
import laneway
from laneway.session import Session
from laneway.storage.memory import MemoryStorage
from laneway.testing import Scripted, text

script = Scripted([text("a"), text("b"), text("c")])

async def prompt(before=None):
    harness, _ = await laneway.AgentHarness.create(session=Session.over(MemoryStorage()), model=script.model, stream_fn=script.stream_fn)
    async with harness:
        lane = await harness.lane("main")
        if before is not None:
            before()
        await lane.prompt("go")

def export():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter = InMemorySpanExporter()
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
    return exporter
"""
NAMES = "['chat scripted', 'invoke_agent main']"


def process(program: str, **environment: str) -> str:
    """Run a program in a process of its own and return what it says."""
    import os

    source = str(Path(__file__).parents[2] / "src")
    surroundings = {**{k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}, "PYTHONPATH": source, **environment}
    ended = subprocess.run([sys.executable, "-c", RUN + program], env=surroundings, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_nothing_is_imported_for_those_who_do_not_trace() -> None:
    """Neither by `import laneway` nor by a run."""
    assert process("asyncio.run(prompt())\nprint([name for name in sys.modules if name.startswith('opentelemetry')])") == "[]"


def test_a_provider_that_is_set_after_the_import_is_used() -> None:
    """Even after the harness was opened: who traces decides when."""
    program = "held = []\nasyncio.run(prompt(lambda: held.append(export())))\nprint([s.name for s in held[0].get_finished_spans()])"
    assert process(program) == NAMES


def test_a_provider_that_the_environment_names_is_used() -> None:
    """As OpenTelemetry's own launcher does it: nobody in the process imports anything."""
    program = """
asyncio.run(prompt())
assert "opentelemetry.sdk.trace" in sys.modules
exporter = export()
asyncio.run(prompt())
print([s.name for s in exporter.get_finished_spans()])
"""
    assert process(program, OTEL_PYTHON_TRACER_PROVIDER="sdk_tracer_provider") == NAMES


def test_the_api_without_a_provider_costs_no_spans() -> None:
    """A library that imports it is not somebody who traces."""
    program = """
from opentelemetry import trace
from laneway.harness import _telemetry
asyncio.run(prompt())
print(_telemetry.span("x", {}) is _telemetry.NOTHING)
"""
    assert process(program) == "True"
