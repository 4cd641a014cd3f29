"""Acceptance: a request becomes an open operation in one commit. No hook, no model, no tool, no drive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from laneway.harness import _inbox, keys
from laneway.harness._answers import refuse_second_results
from laneway.harness._compaction import Preparation
from laneway.harness._events import CompactionStart, HarnessEvent, NavigationStart, RunStart
from laneway.harness._line import Commit, Done
from laneway.harness._placing import added, place, queue_update
from laneway.harness._procedures import _compacting
from laneway.harness.keys import QueuedMessage
from laneway.harness.results import (
    Admission,
    Compact,
    InvalidMessage,
    InvalidNavigation,
    LaneBusy,
    Navigate,
    NothingToCompact,
    Prompt,
    Request,
    Skill,
    Template,
    UnknownSkill,
    UnknownTarget,
    UnknownTemplate,
)
from laneway.harness.state import (
    CommitNavigation,
    CompactionIntent,
    Finish,
    Intent,
    Lane,
    Leaf,
    NavigationIntent,
    NavigationReadyToCommit,
    Operation,
    OperationMeta,
    RunIntent,
    Starting,
    SummaryDeciding,
    Task,
)
from laneway.messages import AgentMessage, AssistantMessage, ImageContent, TextContent, UserMessage, is_message
from laneway.session._mutation import Mutation
from laneway.storage.base import BranchScan, SetValue, Write

if TYPE_CHECKING:
    from laneway.harness._environment import Resources
    from laneway.harness._line import Line


async def accept(line: Line, request: Request, operation_id: str | None) -> Admission:
    """Make the request durable and return what it became.

    Raises:
        Refused: the input, the lane or the session does not allow it; nothing was written.
    """
    match request:
        case Prompt() | Skill() | Template():
            prompt = _Prompt(line, prompt_messages(request, line.runtime.environment.resources), operation_id)
            return await line.command(prompt.plan)
        case Compact():
            return await line.command(_Compaction(line, request, operation_id).plan)
        case Navigate():
            return await line.command(_Navigation(line, request, operation_id).plan)


# ---------------------------------------------------------------------------------------------------- input


def prompt_messages(request: Prompt | Skill | Template, resources: Resources) -> list[AgentMessage]:
    """Return the messages of a prompt, none if it is empty.

    Raises:
        UnknownSkill, UnknownTemplate, InvalidMessage
    """
    match request:
        case Prompt():
            return input_messages(request.input, request.images)
        case Skill():
            text = resources.skills.get(request.name)
            if text is None:
                raise UnknownSkill(request.name, sorted(resources.skills))
            skill = f'<skill name="{request.name}">\n{text}\n</skill>'
            return input_messages(f"{skill}\n\n{request.extra}" if request.extra else skill, None)
        case Template():
            template = resources.templates.get(request.name)
            if template is None:
                raise UnknownTemplate(request.name, sorted(resources.templates))
            return input_messages(render(template, request.args), None)


def render(template: str, args: Sequence[str]) -> str:
    """Fill a prompt template: `$1`, `$2`, … are the arguments ("" where there is none), `$@` is all of them."""

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        if name == "@":
            return " ".join(args)
        number = int(name)
        return args[number - 1] if 0 < number <= len(args) else ""

    return re.sub(r"\$(@|\d+)", value, template)


def input_messages(given: str | AgentMessage | Sequence[AgentMessage], images: list[ImageContent] | None) -> list[AgentMessage]:
    """Return an input as messages; none if it is empty.

    Raises:
        InvalidMessage: it holds a message that cannot be stored, or images where they cannot go.
    """
    if isinstance(given, str):
        if images:
            text = [TextContent(text=given)] if given.strip() else []
            return [UserMessage(content=[*text, *images])]
        return [UserMessage(content=given)] if given.strip() else []
    messages = list(cast("Sequence[AgentMessage]", given)) if isinstance(given, (list, tuple)) else [cast("AgentMessage", given)]
    for message in messages:
        check_message(message)
    if images:
        only = messages[0] if len(messages) == 1 else None
        if not isinstance(only, UserMessage):
            raise InvalidMessage("images_with_non_user")
        content = [TextContent(text=only.content)] if isinstance(only.content, str) else only.content
        return [UserMessage(content=[*content, *images], timestamp=only.timestamp)]
    return [message for message in messages if not _is_empty(message)]


def check_message(message: AgentMessage) -> AgentMessage:
    """Return a message that can be stored, or raise `InvalidMessage`."""
    if not is_message(message) and not isinstance(message, AssistantMessage):
        raise InvalidMessage("unknown_role")
    if isinstance(message, AssistantMessage) and message.stop_reason == "pending":
        raise InvalidMessage("pending_assistant")
    return message


def _is_empty(message: AgentMessage) -> bool:
    if not isinstance(message, UserMessage):
        return False
    return not message.content.strip() if isinstance(message.content, str) else not message.content


def single_message(given: str | AgentMessage, images: list[ImageContent] | None = None) -> AgentMessage:
    """Return the one message of a queued input.

    Raises:
        InvalidMessage: empty, or see `input_messages`.
    """
    messages = input_messages(given, images)
    if not messages:
        raise InvalidMessage("empty")
    return messages[0]


# ---------------------------------------------------------------------------------------------------- plans


class _Acceptance:
    """What all acceptances share."""

    def __init__(self, line: Line, operation_id: str | None) -> None:
        self.line, self.given_id = line, operation_id

    def refuse_if_busy(self, lane: Lane) -> None:
        if lane.operation is not None:
            raise LaneBusy(lane=self.line.name, operation_id=lane.operation.id, kind=lane.operation.meta.intent.kind)

    def meta(self, lane: Lane, intent: Intent) -> OperationMeta:
        runtime = self.line.runtime
        return OperationMeta(
            operation_id=self.given_id or runtime.session.ids.new(),
            lane=self.line.name,
            source_tip_id=lane.tip_id,
            started_at=runtime.environment.clock(),
            intent=intent,
            settings=runtime.environment.settings(),
        )

    def commit(self, writes: list[Write], lane: Lane, meta: OperationMeta, state: Leaf, events: list[HarnessEvent]) -> Commit[Admission]:
        """Return the commit of a structural operation: preparation, meta, leaf, lane."""
        opened = Lane(
            tip_id=lane.tip_id, configuration=lane.configuration, inbox=lane.inbox, last_operation_id=lane.last_operation_id,
            operation=Operation(meta=meta, state=state),
        )  # fmt: skip
        name = self.line.name
        writes = [*writes, keys.set_meta(meta), keys.set_state(meta.operation_id, state), keys.set_lane_state(name, opened)]
        admission = Admission(operation_id=meta.operation_id, kind=meta.intent.kind, started_at=meta.started_at)
        return Commit(writes=writes, next=opened, value=lambda _: admission, events=lambda _: events)


class _Prompt(_Acceptance):
    def __init__(self, line: Line, messages: list[AgentMessage], operation_id: str | None) -> None:
        super().__init__(line, operation_id)
        self.messages = messages

    async def plan(self, lane: Lane, mutation: Mutation) -> Commit[Admission]:
        """Captured queue, then prompt, one chain from the tip."""
        self.refuse_if_busy(lane)
        line, environment = self.line, self.line.runtime.environment
        taken = _inbox.at_acceptance(lane.inbox, environment.steering_mode, environment.follow_up_mode)
        if not self.messages and all(item.kind == "write" for item in taken):
            raise InvalidMessage("empty")
        await refuse_second_results(line, lane, self.messages, mutation)
        placement = await place(line, lane, taken, mutation)
        prompt_ids = [line.runtime.session.ids.new() for _ in self.messages]
        for entry_id, message in zip(prompt_ids, self.messages, strict=True):
            placement.add(entry_id, QueuedMessage(message=message), projects=True)
        meta = self.meta(lane, RunIntent(prompt_entry_ids=prompt_ids))
        opened = Lane(
            tip_id=placement.tip_id, configuration=lane.configuration, inbox=placement.inbox, last_operation_id=lane.last_operation_id,
            operation=Operation(meta=meta, state=Starting()),
        )  # fmt: skip
        update = await queue_update(line, meta.operation_id, placement.inbox, mutation) if taken else []
        started = RunStart(lane=line.name, operation_id=meta.operation_id, started_at=meta.started_at)

        def events(done: Done) -> list[HarnessEvent]:
            entries = added(done, (entry.id for entry in placement.entries), lane=line.name, operation_id=meta.operation_id)
            return [started, *entries, *update]

        writes = [
            *placement.writes(line.name), keys.set_meta(meta), keys.set_state(meta.operation_id, Starting()), keys.set_lane_state(line.name, opened),
        ]  # fmt: skip
        admission = Admission(operation_id=meta.operation_id, kind="run", started_at=meta.started_at)
        return Commit(writes=writes, next=opened, value=lambda _: admission, events=events)


class _Compaction(_Acceptance):
    def __init__(self, line: Line, request: Compact, operation_id: str | None) -> None:
        super().__init__(line, operation_id)
        self.request = request

    async def plan(self, lane: Lane, _: Mutation) -> Commit[Admission]:
        """Preparation and first leaf."""
        self.refuse_if_busy(lane)
        preparation = await _compacting.prepare_manual(self.line)
        if preparation is None:
            raise NothingToCompact(self.line.name, "it is empty, or nothing was said since its last compaction")
        meta = self.meta(lane, CompactionIntent(instructions=self.request.instructions))
        task = Task(
            task_id=self.line.runtime.session.ids.new(), reason="manual", boundary=Finish(), instructions=self.request.instructions
        )
        started = CompactionStart(lane=self.line.name, operation_id=meta.operation_id, reason="manual", started_at=meta.started_at)
        return self.commit([store(meta, task, preparation)], lane, meta, SummaryDeciding(task=task), [started])


class _Navigation(_Acceptance):
    def __init__(self, line: Line, request: Navigate, operation_id: str | None) -> None:
        super().__init__(line, operation_id)
        self.request = request

    async def plan(self, lane: Lane, mutation: Mutation) -> Commit[Admission]:
        """Without a summary only the move is left; with one, its preparation and first leaf."""
        request = self.request
        target = request.target_id
        if target is None and (request.summarize or request.label is not None):
            raise InvalidNavigation("the place before the first entry can have neither a summary nor a label")
        if target is not None and target not in await mutation.get_entries([target]):
            raise UnknownTarget(f"there is no entry {target!r} in this session")
        self.refuse_if_busy(lane)
        intent = NavigationIntent(target_id=target, summarize=request.summarize, label=request.label, instructions=request.instructions)
        meta = self.meta(lane, intent)
        told = NavigationStart(lane=self.line.name, operation_id=meta.operation_id, target_id=target, started_at=meta.started_at)
        if not request.summarize:
            return self.commit([], lane, meta, NavigationReadyToCommit(target_id=target, label=request.label), [told])
        assert target is not None
        ancestor = await _common_ancestor(mutation, lane.tip_id, target)
        preparation = Preparation(kind="branch", tip_id=lane.tip_id, ancestor_id=ancestor)
        boundary = CommitNavigation(target_id=target, label=request.label)
        task = Task(task_id=self.line.runtime.session.ids.new(), boundary=boundary, instructions=request.instructions)
        return self.commit([store(meta, task, preparation)], lane, meta, SummaryDeciding(task=task), [told])


def store(meta: OperationMeta, task: Task, preparation: Preparation) -> SetValue:
    """Return the write of a task's inputs."""
    return SetValue(keys.OP_PREPARATION, keys.under(meta.operation_id, task.task_id), keys.plain(preparation))


async def _common_ancestor(mutation: Mutation, tip_id: str | None, target: str) -> str | None:
    """Return the deepest entry that both paths have; None if they have none."""
    if tip_id is None:
        return None
    to_target = {node.id for node in await mutation.scan_branch_structure(BranchScan(start=target))}
    path = await mutation.scan_branch_structure(BranchScan(start=tip_id))
    return next((node.id for node in path if node.id in to_target), None)
