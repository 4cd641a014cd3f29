"""laneway: a durable, steerable agent runtime.

Three layers: `loop` forgets, `Agent` remembers until the process ends, `AgentHarness` remembers after the process is killed.
Names are loaded when they are first used, so `import laneway` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laneway.abort import (
        AbortController as AbortController,
    )
    from laneway.abort import (
        Aborted as Aborted,
    )
    from laneway.abort import (
        AbortSignal as AbortSignal,
    )
    from laneway.agent import (
        Agent as Agent,
    )
    from laneway.agent import (
        AgentState as AgentState,
    )
    from laneway.agent import (
        PendingMessages as PendingMessages,
    )
    from laneway.errors import (
        AgentBusy as AgentBusy,
    )
    from laneway.errors import (
        HarnessClosed as HarnessClosed,
    )
    from laneway.errors import (
        HarnessError as HarnessError,
    )
    from laneway.errors import (
        HarnessFault as HarnessFault,
    )
    from laneway.errors import (
        LanewayError as LanewayError,
    )
    from laneway.errors import (
        LeaseLost as LeaseLost,
    )
    from laneway.errors import (
        LoopInputError as LoopInputError,
    )
    from laneway.errors import (
        MessageError as MessageError,
    )
    from laneway.errors import (
        MissingExtra as MissingExtra,
    )
    from laneway.errors import (
        ModelError as ModelError,
    )
    from laneway.errors import (
        ModelNotFound as ModelNotFound,
    )
    from laneway.errors import (
        SessionExists as SessionExists,
    )
    from laneway.errors import (
        SessionLocked as SessionLocked,
    )
    from laneway.errors import (
        SessionNotFound as SessionNotFound,
    )
    from laneway.errors import (
        StorageClosed as StorageClosed,
    )
    from laneway.errors import (
        StorageCorruption as StorageCorruption,
    )
    from laneway.errors import (
        StorageError as StorageError,
    )
    from laneway.errors import (
        StorageVersionError as StorageVersionError,
    )
    from laneway.errors import (
        ToolArgumentsError as ToolArgumentsError,
    )
    from laneway.errors import (
        ToolError as ToolError,
    )
    from laneway.errors import (
        WouldDeadlock as WouldDeadlock,
    )
    from laneway.events import (
        AgentEnd as AgentEnd,
    )
    from laneway.events import (
        AgentEvent as AgentEvent,
    )
    from laneway.events import (
        AgentStart as AgentStart,
    )
    from laneway.events import (
        AssistantEvent as AssistantEvent,
    )
    from laneway.events import (
        MessageEnd as MessageEnd,
    )
    from laneway.events import (
        MessageStart as MessageStart,
    )
    from laneway.events import (
        MessageUpdate as MessageUpdate,
    )
    from laneway.events import (
        StreamDone as StreamDone,
    )
    from laneway.events import (
        StreamError as StreamError,
    )
    from laneway.events import (
        StreamStart as StreamStart,
    )
    from laneway.events import (
        TextDelta as TextDelta,
    )
    from laneway.events import (
        TextEnd as TextEnd,
    )
    from laneway.events import (
        TextStart as TextStart,
    )
    from laneway.events import (
        ThinkingDelta as ThinkingDelta,
    )
    from laneway.events import (
        ThinkingEnd as ThinkingEnd,
    )
    from laneway.events import (
        ThinkingStart as ThinkingStart,
    )
    from laneway.events import (
        ToolCallDelta as ToolCallDelta,
    )
    from laneway.events import (
        ToolCallEnd as ToolCallEnd,
    )
    from laneway.events import (
        ToolCallStart as ToolCallStart,
    )
    from laneway.events import (
        ToolExecutionEnd as ToolExecutionEnd,
    )
    from laneway.events import (
        ToolExecutionStart as ToolExecutionStart,
    )
    from laneway.events import (
        ToolExecutionUpdate as ToolExecutionUpdate,
    )
    from laneway.events import (
        TurnEnd as TurnEnd,
    )
    from laneway.events import (
        TurnStart as TurnStart,
    )
    from laneway.harness import (
        Aborting as Aborting,
    )
    from laneway.harness import (
        Admission as Admission,
    )
    from laneway.harness import (
        AgentHarness as AgentHarness,
    )
    from laneway.harness import (
        AgentLane as AgentLane,
    )
    from laneway.harness import (
        Attached as Attached,
    )
    from laneway.harness import (
        Closed as Closed,
    )
    from laneway.harness import (
        Compact as Compact,
    )
    from laneway.harness import (
        CompactionSettings as CompactionSettings,
    )
    from laneway.harness import (
        Context as Context,
    )
    from laneway.harness import (
        ContextPatch as ContextPatch,
    )
    from laneway.harness import (
        Decline as Decline,
    )
    from laneway.harness import (
        Drained as Drained,
    )
    from laneway.harness import (
        Err as Err,
    )
    from laneway.harness import (
        FollowUp as FollowUp,
    )
    from laneway.harness import (
        HarnessEvent as HarnessEvent,
    )
    from laneway.harness import (
        Inject as Inject,
    )
    from laneway.harness import (
        InvalidMessage as InvalidMessage,
    )
    from laneway.harness import (
        InvalidNavigation as InvalidNavigation,
    )
    from laneway.harness import (
        LaneBusy as LaneBusy,
    )
    from laneway.harness import (
        LaneExecution as LaneExecution,
    )
    from laneway.harness import (
        LaneInfo as LaneInfo,
    )
    from laneway.harness import (
        LaneSnapshot as LaneSnapshot,
    )
    from laneway.harness import (
        Navigate as Navigate,
    )
    from laneway.harness import (
        NoActiveOperation as NoActiveOperation,
    )
    from laneway.harness import (
        NothingToCompact as NothingToCompact,
    )
    from laneway.harness import (
        NothingToResume as NothingToResume,
    )
    from laneway.harness import (
        NotSuspended as NotSuspended,
    )
    from laneway.harness import (
        Ok as Ok,
    )
    from laneway.harness import (
        OpenOperation as OpenOperation,
    )
    from laneway.harness import (
        OperationError as OperationError,
    )
    from laneway.harness import (
        OperationInfo as OperationInfo,
    )
    from laneway.harness import (
        OperationMismatch as OperationMismatch,
    )
    from laneway.harness import (
        OperationResult as OperationResult,
    )
    from laneway.harness import (
        OperationSnapshot as OperationSnapshot,
    )
    from laneway.harness import (
        PayloadPatch as PayloadPatch,
    )
    from laneway.harness import (
        Prompt as Prompt,
    )
    from laneway.harness import (
        Refused as Refused,
    )
    from laneway.harness import (
        RequestPatch as RequestPatch,
    )
    from laneway.harness import (
        Resources as Resources,
    )
    from laneway.harness import (
        ResponsePatch as ResponsePatch,
    )
    from laneway.harness import (
        RetryPolicy as RetryPolicy,
    )
    from laneway.harness import (
        SessionSnapshot as SessionSnapshot,
    )
    from laneway.harness import (
        Settled as Settled,
    )
    from laneway.harness import (
        Skill as Skill,
    )
    from laneway.harness import (
        Supply as Supply,
    )
    from laneway.harness import (
        Suspend as Suspend,
    )
    from laneway.harness import (
        SuspendedCallInfo as SuspendedCallInfo,
    )
    from laneway.harness import (
        Template as Template,
    )
    from laneway.harness import (
        UnknownSkill as UnknownSkill,
    )
    from laneway.harness import (
        UnknownTarget as UnknownTarget,
    )
    from laneway.harness import (
        UnknownTemplate as UnknownTemplate,
    )
    from laneway.harness import (
        Waiting as Waiting,
    )
    from laneway.harness import (
        WatchHandle as WatchHandle,
    )
    from laneway.harness import (
        apply_event as apply_event,
    )
    from laneway.llm import (
        AssistantStream as AssistantStream,
    )
    from laneway.llm import (
        Model as Model,
    )
    from laneway.llm import (
        Models as Models,
    )
    from laneway.llm import (
        StreamFn as StreamFn,
    )
    from laneway.llm import (
        StreamOptions as StreamOptions,
    )
    from laneway.llm import (
        Transcript as Transcript,
    )
    from laneway.llm import (
        get_default_stream_fn as get_default_stream_fn,
    )
    from laneway.llm import (
        model as model,
    )
    from laneway.llm import (
        set_default_stream_fn as set_default_stream_fn,
    )
    from laneway.loop import (
        AfterToolCall as AfterToolCall,
    )
    from laneway.loop import (
        AgentContext as AgentContext,
    )
    from laneway.loop import (
        BeforeToolCall as BeforeToolCall,
    )
    from laneway.loop import (
        Block as Block,
    )
    from laneway.loop import (
        CompletedTurn as CompletedTurn,
    )
    from laneway.loop import (
        Continue as Continue,
    )
    from laneway.loop import (
        End as End,
    )
    from laneway.loop import (
        EventStream as EventStream,
    )
    from laneway.loop import (
        LoopConfig as LoopConfig,
    )
    from laneway.loop import (
        LoopLimits as LoopLimits,
    )
    from laneway.loop import (
        PatchResult as PatchResult,
    )
    from laneway.loop import (
        ReplaceArgs as ReplaceArgs,
    )
    from laneway.loop import (
        RequestContext as RequestContext,
    )
    from laneway.loop import (
        RequestUpdate as RequestUpdate,
    )
    from laneway.loop import (
        TurnUpdate as TurnUpdate,
    )
    from laneway.loop import (
        agent_loop as agent_loop,
    )
    from laneway.loop import (
        agent_loop_continue as agent_loop_continue,
    )
    from laneway.loop import (
        run_agent_loop as run_agent_loop,
    )
    from laneway.loop import (
        run_agent_loop_continue as run_agent_loop_continue,
    )
    from laneway.messages import (
        AgentMessage as AgentMessage,
    )
    from laneway.messages import (
        AssistantMessage as AssistantMessage,
    )
    from laneway.messages import (
        BashExecutionMessage as BashExecutionMessage,
    )
    from laneway.messages import (
        BranchSummaryMessage as BranchSummaryMessage,
    )
    from laneway.messages import (
        CompactionSummaryMessage as CompactionSummaryMessage,
    )
    from laneway.messages import (
        Cost as Cost,
    )
    from laneway.messages import (
        CustomMessage as CustomMessage,
    )
    from laneway.messages import (
        DeferredHandle as DeferredHandle,
    )
    from laneway.messages import (
        ErrorInfo as ErrorInfo,
    )
    from laneway.messages import (
        ImageContent as ImageContent,
    )
    from laneway.messages import (
        Message as Message,
    )
    from laneway.messages import (
        StopReason as StopReason,
    )
    from laneway.messages import (
        SystemMessage as SystemMessage,
    )
    from laneway.messages import (
        TextContent as TextContent,
    )
    from laneway.messages import (
        ThinkingContent as ThinkingContent,
    )
    from laneway.messages import (
        ToolCall as ToolCall,
    )
    from laneway.messages import (
        ToolDeclaration as ToolDeclaration,
    )
    from laneway.messages import (
        ToolGrammar as ToolGrammar,
    )
    from laneway.messages import (
        ToolResultMessage as ToolResultMessage,
    )
    from laneway.messages import (
        Usage as Usage,
    )
    from laneway.messages import (
        UserMessage as UserMessage,
    )
    from laneway.messages import (
        decode_message as decode_message,
    )
    from laneway.messages import (
        encode as encode,
    )
    from laneway.messages import (
        register_message as register_message,
    )
    from laneway.session import (
        Branch as Branch,
    )
    from laneway.session import (
        Fork as Fork,
    )
    from laneway.session import (
        JsonlRepo as JsonlRepo,
    )
    from laneway.session import (
        MemoryRepo as MemoryRepo,
    )
    from laneway.session import (
        PostgresRepo as PostgresRepo,
    )
    from laneway.session import (
        Session as Session,
    )
    from laneway.session import (
        SessionInfo as SessionInfo,
    )
    from laneway.session import (
        SessionMetadata as SessionMetadata,
    )
    from laneway.session import (
        SessionTree as SessionTree,
    )
    from laneway.session import (
        SqliteRepo as SqliteRepo,
    )
    from laneway.tools import (
        AgentTool as AgentTool,
    )
    from laneway.tools import (
        ToolResult as ToolResult,
    )
    from laneway.tools import (
        ToolRun as ToolRun,
    )
    from laneway.tools import (
        bash_tool as bash_tool,
    )
    from laneway.tools import (
        coding_tools as coding_tools,
    )
    from laneway.tools import (
        edit_tool as edit_tool,
    )
    from laneway.tools import (
        find_tool as find_tool,
    )
    from laneway.tools import (
        grep_tool as grep_tool,
    )
    from laneway.tools import (
        ls_tool as ls_tool,
    )
    from laneway.tools import (
        read_tool as read_tool,
    )
    from laneway.tools import (
        tool as tool,
    )
    from laneway.tools import (
        write_tool as write_tool,
    )
    from laneway.transcript import (
        ToolChanges as ToolChanges,
    )
    from laneway.transcript import (
        current_system_message as current_system_message,
    )
    from laneway.transcript import (
        current_system_prompt as current_system_prompt,
    )
    from laneway.transcript import (
        current_tools as current_tools,
    )
    from laneway.transcript import (
        declare_tool_changes as declare_tool_changes,
    )
    from laneway.transcript import (
        tool_changes as tool_changes,
    )

_HOME = {
    "laneway.abort": (
        "AbortController AbortSignal Aborted"
    ),
    "laneway.agent": (
        "Agent AgentState PendingMessages"
    ),
    "laneway.errors": (
        "AgentBusy HarnessClosed HarnessError HarnessFault LanewayError LeaseLost LoopInputError MessageError MissingExtra "
        "ModelError ModelNotFound SessionExists SessionLocked SessionNotFound StorageClosed StorageCorruption StorageError "
        "StorageVersionError ToolArgumentsError ToolError WouldDeadlock"
    ),
    "laneway.events": (
        "AgentEnd AgentEvent AgentStart AssistantEvent MessageEnd MessageStart MessageUpdate StreamDone StreamError StreamStart "
        "TextDelta TextEnd TextStart ThinkingDelta ThinkingEnd ThinkingStart ToolCallDelta ToolCallEnd ToolCallStart "
        "ToolExecutionEnd ToolExecutionStart ToolExecutionUpdate TurnEnd TurnStart"
    ),
    "laneway.harness": (
        "Aborting Admission AgentHarness AgentLane Attached Closed Compact CompactionSettings Context ContextPatch Decline Drained "
        "Err FollowUp HarnessEvent Inject InvalidMessage InvalidNavigation LaneBusy LaneExecution LaneInfo LaneSnapshot Navigate "
        "NoActiveOperation NotSuspended NothingToCompact NothingToResume Ok OpenOperation OperationError OperationInfo "
        "OperationMismatch OperationResult OperationSnapshot PayloadPatch Prompt Refused RequestPatch Resources ResponsePatch "
        "RetryPolicy SessionSnapshot Settled Skill Supply Suspend SuspendedCallInfo Template UnknownSkill UnknownTarget "
        "UnknownTemplate Waiting WatchHandle apply_event"
    ),
    "laneway.llm": (
        "AssistantStream Model Models StreamFn StreamOptions Transcript get_default_stream_fn model set_default_stream_fn"
    ),
    "laneway.loop": (
        "AfterToolCall AgentContext BeforeToolCall Block CompletedTurn Continue End EventStream LoopConfig LoopLimits PatchResult "
        "ReplaceArgs RequestContext RequestUpdate TurnUpdate agent_loop agent_loop_continue run_agent_loop "
        "run_agent_loop_continue"
    ),
    "laneway.messages": (
        "AgentMessage AssistantMessage BashExecutionMessage BranchSummaryMessage CompactionSummaryMessage Cost CustomMessage "
        "DeferredHandle ErrorInfo ImageContent Message StopReason SystemMessage TextContent ThinkingContent ToolCall "
        "ToolDeclaration ToolGrammar ToolResultMessage Usage UserMessage decode_message encode register_message"
    ),
    "laneway.session": (
        "Branch Fork JsonlRepo MemoryRepo PostgresRepo Session SessionInfo SessionMetadata SessionTree SqliteRepo"
    ),
    "laneway.tools": (
        "AgentTool ToolResult ToolRun bash_tool coding_tools edit_tool find_tool grep_tool ls_tool read_tool tool write_tool"
    ),
    "laneway.transcript": (
        "ToolChanges current_system_message current_system_prompt current_tools declare_tool_changes tool_changes"
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "AbortController",
    "AbortSignal",
    "Aborted",
    "Aborting",
    "Admission",
    "AfterToolCall",
    "Agent",
    "AgentBusy",
    "AgentContext",
    "AgentEnd",
    "AgentEvent",
    "AgentHarness",
    "AgentLane",
    "AgentMessage",
    "AgentStart",
    "AgentState",
    "AgentTool",
    "AssistantEvent",
    "AssistantMessage",
    "AssistantStream",
    "Attached",
    "BashExecutionMessage",
    "BeforeToolCall",
    "Block",
    "Branch",
    "BranchSummaryMessage",
    "Closed",
    "Compact",
    "CompactionSettings",
    "CompactionSummaryMessage",
    "CompletedTurn",
    "Context",
    "ContextPatch",
    "Continue",
    "Cost",
    "CustomMessage",
    "Decline",
    "DeferredHandle",
    "Drained",
    "End",
    "Err",
    "ErrorInfo",
    "EventStream",
    "FollowUp",
    "Fork",
    "HarnessClosed",
    "HarnessError",
    "HarnessEvent",
    "HarnessFault",
    "ImageContent",
    "Inject",
    "InvalidMessage",
    "InvalidNavigation",
    "JsonlRepo",
    "LaneBusy",
    "LaneExecution",
    "LaneInfo",
    "LaneSnapshot",
    "LanewayError",
    "LeaseLost",
    "LoopConfig",
    "LoopInputError",
    "LoopLimits",
    "MemoryRepo",
    "Message",
    "MessageEnd",
    "MessageError",
    "MessageStart",
    "MessageUpdate",
    "MissingExtra",
    "Model",
    "ModelError",
    "ModelNotFound",
    "Models",
    "Navigate",
    "NoActiveOperation",
    "NotSuspended",
    "NothingToCompact",
    "NothingToResume",
    "Ok",
    "OpenOperation",
    "OperationError",
    "OperationInfo",
    "OperationMismatch",
    "OperationResult",
    "OperationSnapshot",
    "PatchResult",
    "PayloadPatch",
    "PendingMessages",
    "PostgresRepo",
    "Prompt",
    "Refused",
    "ReplaceArgs",
    "RequestContext",
    "RequestPatch",
    "RequestUpdate",
    "Resources",
    "ResponsePatch",
    "RetryPolicy",
    "Session",
    "SessionExists",
    "SessionInfo",
    "SessionLocked",
    "SessionMetadata",
    "SessionNotFound",
    "SessionSnapshot",
    "SessionTree",
    "Settled",
    "Skill",
    "SqliteRepo",
    "StopReason",
    "StorageClosed",
    "StorageCorruption",
    "StorageError",
    "StorageVersionError",
    "StreamDone",
    "StreamError",
    "StreamFn",
    "StreamOptions",
    "StreamStart",
    "Supply",
    "Suspend",
    "SuspendedCallInfo",
    "SystemMessage",
    "Template",
    "TextContent",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ThinkingContent",
    "ThinkingDelta",
    "ThinkingEnd",
    "ThinkingStart",
    "ToolArgumentsError",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolChanges",
    "ToolDeclaration",
    "ToolError",
    "ToolExecutionEnd",
    "ToolExecutionStart",
    "ToolExecutionUpdate",
    "ToolGrammar",
    "ToolResult",
    "ToolResultMessage",
    "ToolRun",
    "Transcript",
    "TurnEnd",
    "TurnStart",
    "TurnUpdate",
    "UnknownSkill",
    "UnknownTarget",
    "UnknownTemplate",
    "Usage",
    "UserMessage",
    "Waiting",
    "WatchHandle",
    "WouldDeadlock",
    "agent_loop",
    "agent_loop_continue",
    "apply_event",
    "bash_tool",
    "coding_tools",
    "current_system_message",
    "current_system_prompt",
    "current_tools",
    "declare_tool_changes",
    "decode_message",
    "edit_tool",
    "encode",
    "find_tool",
    "get_default_stream_fn",
    "grep_tool",
    "ls_tool",
    "model",
    "read_tool",
    "register_message",
    "run_agent_loop",
    "run_agent_loop_continue",
    "set_default_stream_fn",
    "tool",
    "tool_changes",
    "write_tool",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'laneway' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
