"""Runs work on what others wrote in a process of its own, with limits of time and memory.

A thread cannot be stopped, and its memory cannot be taken back; a process can be killed. So a hostile input ends its
own process at most, and the caller gets an error.
"""

from ballast.guarded.process import GuardedProcess, LimitExceededError, Limits, TaskFailedError

__all__ = ["GuardedProcess", "LimitExceededError", "Limits", "TaskFailedError"]
