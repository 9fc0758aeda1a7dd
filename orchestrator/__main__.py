"""Owns nothing: `python -m orchestrator` is `wallfinder`."""

from orchestrator.cli import main

main(prog_name="wallfinder")
