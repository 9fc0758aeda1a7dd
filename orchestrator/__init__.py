"""Plans, schedules, watches and records a sweep. Never imports MLX.

Import nothing here: the watchdog, which lives in this package, has to stay small.
"""

__version__ = "0.1.0"
