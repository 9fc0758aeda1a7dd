"""The process that watches a worker from outside and ends it at the wall. Standard library only."""
