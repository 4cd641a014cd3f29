"""`python -m laneway` is the `laneway` command."""

from laneway.cli.main import run

run()
