"""The ways to run a cell's decode."""
