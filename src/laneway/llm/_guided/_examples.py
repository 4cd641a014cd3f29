"""Examples for small models: requests and the replies to them. A small model copies the pattern of the one that is most like its own request."""

from __future__ import annotations

from typing import Any

Reply = dict[str, Any]


def _call(tool: str, **arguments: Any) -> Reply:
    return {"tool": tool, "arguments": arguments}


ANSWERS: tuple[tuple[str, Reply], ...] = (
    ("Hello!", {"answer": "Hello! How can I help you?"}),
    ("What is the capital of Italy?", {"answer": "The capital of Italy is Rome."}),
    ("What is 3+4?", {"answer": "3+4 is 7."}),
    ("Thanks!", {"answer": "You are welcome!"}),
    ("Tell me a story", {"answer": "Once upon a time there was a cat who liked the sea."}),
    ("Explain what Linux is", {"answer": "Linux is a free operating system."}),
    ("Who are you?", {"answer": "I am a small language model."}),
)

CALLS: dict[str, tuple[tuple[str, Reply], ...]] = {
    "read": (
        ("What does todo.md say?", _call("read", path="todo.md")),
        ("Read story.txt and tell me who wrote it.", _call("read", path="story.txt")),
        ("Show me the contents of lib/util.c", _call("read", path="lib/util.c")),
        ("Look into mail.txt: when is the party?", _call("read", path="mail.txt")),
        ("Open sales/total.csv and tell me the total", _call("read", path="sales/total.csv")),
        ("Summarize GUIDE.md", _call("read", path="GUIDE.md")),
        ("What is in data.json?", _call("read", path="data.json")),
        ("How many words are in essay.txt?", _call("read", path="essay.txt")),
    ),
    "ls": (
        ("List the files here", _call("ls", path=".")),
        ("Which files are in this folder?", _call("ls", path=".")),
        ("Show all files", _call("ls", path=".")),
        ("Show the files in the docs/ directory", _call("ls", path="docs/")),
    ),
    "grep": (
        ("Which file mentions the budget?", _call("grep", pattern="budget")),
        ("Which files mention sugar?", _call("grep", pattern="sugar")),
        ("Search for FIXME in the code", _call("grep", pattern="FIXME")),
        ("Where is the function parse defined?", _call("grep", pattern="parse")),
    ),
    "find": (("Find all text files", _call("find", pattern="*.txt")), ("Find the images", _call("find", pattern="*.png"))),
    "bash": (("Run the command date", _call("bash", command="date")), ("Run make build", _call("bash", command="make build"))),
    "write": (
        ("Create a file new.txt with the text hello", _call("write", path="new.txt", content="hello")),
        ("Write the line ok to status.md", _call("write", path="status.md", content="ok")),
    ),
    "edit": (("In a.txt replace old by new", _call("edit", path="a.txt", edits=[{"old_text": "old", "new_text": "new"}])),),
}

RESULTS: tuple[tuple[str, str, str, str, str], ...] = (
    ("Which file mentions the price?", "grep", "price", "shop.txt:3: The price is 5 EUR.", "shop.txt mentions it: The price is 5 EUR."),
    ("List all files", "ls", ".", "a.txt\nb.txt\ndocs/", "The files are:\na.txt\nb.txt\ndocs/"),
    ("When should I call Ann?", "read", "plan.md", "Title: Plan\n- Buy milk.\n- Call Ann at 9.", "Call Ann at 9."),
    (
        "What does plan.md say?", "read", "plan.md", "Title: Plan\n- Buy milk.\n- Call Ann at 9.",
        "plan.md says:\nTitle: Plan\n- Buy milk.\n- Call Ann at 9.",
    ),
)  # fmt: skip
"""Question, tool, what it was called with, its result, the answer. The order matters to so small a model: the most common kind comes last."""
