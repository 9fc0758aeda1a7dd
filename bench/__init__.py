"""Measures the watchdog on real walls and healthy cells; docs/benchmarks.md has the commands and the results."""
