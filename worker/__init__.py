"""Runs one cell's real MLX decode in a process of its own. Never imports the orchestrator.

Import nothing here: the orchestrator and the watchdog share `worker.protocol` and `worker.telemetry`.
"""
