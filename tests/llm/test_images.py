"""An image that a provider refuses: known by the words of every provider, and left out of what is sent after it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any, get_args

import pytest

from laneway import Agent, AgentHarness, tool
from laneway.harness import CompactionSettings
from laneway.llm._errors import CODE_KINDS, classify, classify_text, event_failure, http_failure
from laneway.llm._retry import is_retryable
from laneway.messages import AssistantMessage, ImageContent, UserMessage
from laneway.session import Session
from laneway.storage.memory import MemoryStorage
from laneway.testing import call, error, serve_wire, text
from laneway.testing._serve.server import DIALECTS
from laneway.tools import ToolResult
from laneway.transcript import IMAGE_REFUSED

FIELDS: dict[str, Any] = {"max_tokens": 8000, "context_window": 100_000, "input": ("text", "image")}
GUARD = 20.0


def image(name: str) -> ImageContent:
    """An image that is found again in a request by its data."""
    return ImageContent(data=base64.b64encode(f"\x89PNG {name * 8}".encode()).decode(), mime_type="image/png")


@tool
def shoot(name: str) -> ToolResult:
    """Take a picture."""
    return ToolResult(content=[image(name)])


def shown(body: Any, *names: str) -> list[str]:
    """Which images are in the body of a request."""
    sent = json.dumps(body)
    return [name for name in names if image(name).data in sent]


# ---------------------------------------------------------------------------------------------------- what providers say


def openai(message: str, code: str | None = None) -> dict[str, Any]:
    """An error of OpenAI, and of the many servers that speak as it does."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def anthropic(message: str) -> dict[str, Any]:
    """An error of Anthropic."""
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def google(message: str) -> dict[str, Any]:
    """An error of Google."""
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


REFUSALS: list[tuple[int, dict[str, Any]]] = [
    (400, anthropic("Could not process image")),
    (400, anthropic("messages.118.content.4.image.source.base64: image cannot be empty")),
    (400, anthropic("messages.10.content.3.image.source.base64.media_type: Input should be 'image/jpeg' or 'image/png'")),
    (400, anthropic("messages.17.content.12.image.source.base64.data: Image does not match the provided media type image/png")),
    (400, anthropic("messages.7.content.2.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels")),
    (400, anthropic("messages.58.content.2.image.source.base64: image exceeds 5 MB maximum: 6500712 bytes > 5242880 bytes")),
    (400, openai("You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png']", "invalid_image_format")),
    (400, openai("You uploaded an unsupported image. Please make sure your image is valid.", "sanitizer_server_error")),
    (400, openai("The image data you provided does not represent a valid image. Please check your input")),
    (400, openai("Too many images in request. Max is 10.")),
    (400, openai("Request contains 52 images, exceeding the maximum of 50 allowed per request")),
    (400, openai("Invalid content type. image_url is only supported by certain models.")),
    (400, google("Unable to process input image. Please retry or report in https://developers.generativeai.google/guide/troubleshooting")),
    (400, google("Provided image is not valid.")),
    (400, google("Unsupported MIME type: image/bmp")),
    (400, google("Invalid value at 'contents[0].parts[2].inline_data.data' (TYPE_BYTES), Base64 decoding failed for \"x\"")),
    (400, {"message": "The model returned the following errors: The provided image does not match the specified image format."}),
    (400, {"message": "1 validation error detected: Value at 'messages.1.member.content.2.member.image.format' failed to satisfy"}),
    (500, {"object": "error", "message": "Image data:image/png;base64,iVBO has an invalid format.", "type": "invalid_request_error"}),
    (400, {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": '{"message":"Provided image is not valid."}'}}}),
    (404, {"error": {"message": "No endpoints found that support image input", "code": 404}}),
    (400, openai("Failed to load image or audio file")),
    (500, openai("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj")),
    (400, openai("cannot identify image file <_io.BytesIO object at 0x7f32>")),
    (400, openai("At most 1 image(s) may be provided in one prompt.")),
    (413, openai("image too large")),
]
OTHERS = [
    "The model grok-2-image is an image model and is therefore not available on this endpoint",
    "This model does not support image generation", "Request contains an invalid argument.", "no such image model",
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), REFUSALS)
def test_a_refused_image_is_known_by_the_provider_s_words(status: int, body: dict[str, Any]) -> None:
    """B57: as an answer, and in the middle of a stream; the text says what comes of it, and asking for the same again is no help."""
    failure = http_failure(status, {}, json.dumps(body).encode(), provider="p")
    assert failure.info.kind == "image"
    assert event_failure(body, provider="p").info.kind == "image"
    assert "A note takes the place of the image" in str(failure)
    assert not is_retryable(AssistantMessage(content=[], stop_reason="error", error=failure.info))


def test_every_code_of_an_image_is_known() -> None:
    """B57: the contract oracle has a code for each; the wire's own word counts more than its sentence."""
    from openai.types.responses import ResponseError

    codes = [code for code in get_args(ResponseError.model_fields["code"].annotation) if "image" in code]
    assert len(codes) > 10
    assert {CODE_KINDS[code] for code in codes} == {"image"}


@pytest.mark.parametrize("words", OTHERS)
def test_not_everything_about_images_is_a_refused_image(words: str) -> None:
    """B57: a wrong yes would take images out of the conversation for nothing."""
    assert classify(status=400, text=words) == "invalid_request"
    assert classify_text(words) == "unknown"


@pytest.mark.parametrize("status", [401, 403, 429])
def test_a_refusal_of_the_caller_is_none_of_an_image(status: int) -> None:
    """B57: whoever may not send, or not so often, learns nothing about images."""
    assert classify(status=status, text="Could not process image") != "image"


# ---------------------------------------------------------------------------------------------------- what is sent after it


def check(bodies: Sequence[Any]) -> None:
    """The request that was refused had both images; the ones after it have a note in their place, and the one that came later."""
    assert shown(bodies[1], "asked", "broken", "later") == ["asked", "broken"]
    assert shown(bodies[2], "asked", "broken", "later") == ["asked"]
    assert shown(bodies[3], "asked", "broken", "later") == ["asked", "later"]
    assert json.dumps(bodies[3]).count(IMAGE_REFUSED) == 1


SCRIPT = [call("shoot", name="broken"), error("this one is broken", kind="image"), text("I see."), text("And this.")]


@pytest.mark.parametrize("wire", DIALECTS)
async def test_an_agent_goes_on_without_an_image_that_was_refused(wire: str) -> None:
    """B57: on every wire, in the result of a tool; what the model had answered to before stays, and the transcript is not rewritten."""
    async with serve_wire(wire, SCRIPT) as server, asyncio.timeout(GUARD):
        agent = Agent(model=server.model(**FIELDS), tools=[shoot])
        await agent.prompt("Look at this.", images=[image("asked")])
        refused = agent.state.messages[-1]
        await agent.prompt("What was that?")
        await agent.prompt("And this?", images=[image("later")])
    assert server.refused == []
    assert isinstance(refused, AssistantMessage)
    assert refused.error is not None
    assert refused.error.kind == "image"
    check([request.body for request in server.requests])
    assert shown([str(message) for message in agent.state.messages], "asked", "broken", "later") == ["asked", "broken", "later"]


@pytest.mark.parametrize("wire", DIALECTS)
async def test_a_durable_run_goes_on_without_an_image_that_was_refused(wire: str) -> None:
    """B57: the same for the harness, and for the process that comes after it: what is sent comes from what is stored."""
    storage = MemoryStorage()
    async with serve_wire(wire, SCRIPT) as server, asyncio.timeout(GUARD):
        harness, _ = await AgentHarness.create(session=Session.over(storage), model=server.model(**FIELDS), tools=[shoot])
        async with harness:
            lane = await harness.lane("main")
            await lane.prompt("Look at this.", images=[image("asked")])
            await lane.prompt("What was that?")
        harness, _ = await AgentHarness.create(session=Session.over(storage.reopen()), model=server.model(**FIELDS), tools=[shoot])
        async with harness:
            await (await harness.lane("main")).prompt("And this?", images=[image("later")])
    assert server.refused == []
    check([request.body for request in server.requests])


async def test_a_refused_image_stays_out_after_a_compaction() -> None:
    """B57: what the compaction keeps, it keeps with the refusal."""
    script = [text("One."), text("Two."), error("no", kind="image"), text("Three."), text("A summary."), text("Four.")]
    async with serve_wire("openai_chat", script) as server, asyncio.timeout(GUARD):
        settings = CompactionSettings(keep_recent_tokens=2_000)
        session = Session.over(MemoryStorage())
        harness, _ = await AgentHarness.create(session=session, model=server.model(**FIELDS), compaction=settings)
        async with harness:
            lane = await harness.lane("main")
            await lane.prompt("one")
            await lane.prompt("two " * 1_000)
            await lane.prompt("Look.", images=[image("broken")])
            await lane.prompt("three")
            await lane.compact()
            await lane.prompt("four")
    assert server.refused == []
    last = server.requests[-1].body
    assert "A summary." in json.dumps(last)
    assert shown(last, "broken") == []
    assert json.dumps(last).count(IMAGE_REFUSED) == 1


@pytest.mark.parametrize("wire", DIALECTS)
async def test_an_image_in_a_prompt_is_left_out_as_well(wire: str) -> None:
    """B57: the first message of a conversation; with nothing else in it, the note is all that is left."""
    async with serve_wire(wire, [error("no", kind="image"), text("Which image?")]) as server, asyncio.timeout(GUARD):
        agent = Agent(model=server.model(**FIELDS))
        await agent.prompt(UserMessage(content=[image("broken")]))
        await agent.prompt("Now?")
    assert server.refused == []
    bodies = [request.body for request in server.requests]
    assert [shown(body, "broken") for body in bodies] == [["broken"], []]
    assert IMAGE_REFUSED in json.dumps(bodies[1])
