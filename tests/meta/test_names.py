"""The public face: which names there are, with which parameters, and that none goes unnoticed."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import laneway
from meta.names import FILE, MODULES, everything, parts_of, public_names

# What the documentation promises; more may be added, nothing may go. Fields and parameters in brackets.
PROMISED = {
    "laneway.messages": """
        TextContent(text signature) ThinkingContent(thinking signature redacted) ImageContent(data mime_type)
        ToolCall(id name arguments arguments_error signature)
        SystemMessage(content sections tools_added tools_removed timestamp) UserMessage(content timestamp)
        AssistantMessage(content api provider model usage stop_reason error_message response_id response_model raw_stop_reason deferred timestamp)
        ToolResultMessage(tool_call_id tool_name content details usage is_error timestamp) ToolDeclaration(name description parameters)
        Usage(input output cache_read cache_write reasoning total_tokens cost) register_message encode decode_message""",
    "laneway.transcript": "current_system_prompt current_system_message current_tools tool_changes declare_tool_changes ToolChanges(added removed)",
    "laneway.events": """
        AgentStart AgentEnd(messages reason limit) TurnStart TurnEnd(message tool_results) MessageStart(message) MessageUpdate(message event)
        MessageEnd(message) ToolExecutionStart(tool_call_id tool_name args) ToolExecutionUpdate(tool_call_id tool_name args partial_result)
        ToolExecutionEnd(tool_call_id tool_name result is_error)""",
    "laneway.abort": "AbortController AbortSignal Aborted",
    "laneway.tools": """
        tool AgentTool(name label description parameters execute prepare_arguments execution_mode replay) ToolResult(content details terminate usage)
        ToolRun ToolError read_tool(cwd) write_tool(cwd) edit_tool(cwd) bash_tool(cwd) grep_tool(cwd) find_tool(cwd) ls_tool(cwd)
        coding_tools(cwd)""",
    "laneway.llm": """
        Model(id provider api name base_url reasoning input context_window max_tokens cost compat) Models model(spec) Transcript(messages)
        StreamOptions(signal api_key reasoning temperature max_tokens headers timeout max_retries max_retry_delay cache_retention session_id 
        tool_choice metadata on_payload on_response deferred) AssistantStream set_default_stream_fn get_default_stream_fn""",
    "laneway.loop": """
        AgentContext(messages tools) LoopConfig(model thinking_level stream_options convert_to_llm transform_context get_api_key prepare_request
        prepare_next_turn finish_turn get_steering_messages get_follow_up_messages tool_execution before_tool_call after_tool_call tool_abort_grace
        limits)
        LoopLimits(max_turns max_tool_calls max_output_tokens max_cost deadline) agent_loop(prompts context config signal stream_fn)
        agent_loop_continue(context config signal stream_fn) run_agent_loop(prompts context config emit signal stream_fn)
        run_agent_loop_continue(context config emit signal stream_fn) End Continue RequestUpdate(context model thinking_level)
        TurnUpdate(context messages model thinking_level) Block(reason terminate) ReplaceArgs(args)
        PatchResult(content details is_error terminate usage) BeforeToolCall(assistant_message tool_call args context)
        AfterToolCall(assistant_message tool_call args result is_error context) CompletedTurn(message tool_results context new_messages)""",
    "laneway.agent": "Agent(model system_prompt tools messages thinking_level stream_fn steering_mode follow_up_mode)",
    "laneway.errors": "LoopInputError AgentBusy WouldDeadlock ModelNotFound ToolError",
    "laneway.testing": "Scripted text thinking call calls truncated error overflow deferred provider_ready",
}
_ITEM = re.compile(r"(\w+)(?:\(([^)]*)\))?")
ITEMS = [(module, name, parts.split()) for module, text in PROMISED.items() for name, parts in _ITEM.findall(text)]


@pytest.mark.parametrize(("module", "name", "parts"), ITEMS, ids=[f"{module}.{name}" for module, name, _ in ITEMS])
def test_what_is_promised_is_there(module: str, name: str, parts: list[str]):
    """The name exists in its module, with every promised parameter or field."""
    value = getattr(importlib.import_module(module), name)
    assert set(parts) <= set(parts_of(value))


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, name, _ in ITEMS if module not in ("laneway.llm", "laneway.testing")])
def test_the_package_itself_has_it_too(module: str, name: str):
    """`from laneway import …` is enough for everything but the doubles and the details of the model layer."""
    assert getattr(laneway, name) is getattr(importlib.import_module(module), name)


def test_the_list_of_public_names_is_the_one_that_was_agreed():
    """A name that comes, goes or changes its parameters shows in the diff of a file; `python tests/meta/names.py` writes it anew."""
    assert everything().splitlines() == FILE.read_text().splitlines()


@pytest.mark.parametrize("name", MODULES)
def test_every_listed_name_exists_and_the_list_is_sorted(name: str):
    """`from module import *` works, and a newcomer finds a name where the alphabet puts it."""
    module = importlib.import_module(name)
    listed = list(getattr(module, "__all__", public_names(module)))
    assert listed == sorted(listed, key=lambda each: (not each.isupper(), each[0].islower(), each))
    assert len(listed) == len(set(listed))
    assert all(hasattr(module, each) for each in listed)
    assert set(listed) <= set(dir(module))


@pytest.mark.parametrize("name", MODULES)
def test_what_is_public_says_what_it_is(name: str):
    """Every public class and function has a docstring of its own."""
    module = importlib.import_module(name)
    found = ((each, getattr(module, each)) for each in public_names(module))
    silent = [each for each, value in found if (inspect.isclass(value) or inspect.isfunction(value)) and not value.__doc__]
    assert silent == []


def test_an_unknown_name_is_an_attribute_error():
    """The lazy package does not hide a typing mistake."""
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        laneway.Agnet  # type: ignore[attr-defined]  # noqa: B018
