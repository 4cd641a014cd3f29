"""The two effects that every engine performs: ask a model once, call a tool once.

The loop and the durable harness are different engines over the same effects. `respond` streams one assistant response;
`call_tools` has the phases of one tool call (prepare, execute, finalise), so that the harness can commit between them;
`batch` puts the phases together for the loop.
"""
