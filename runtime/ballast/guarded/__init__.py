"""Runs work on what others wrote in a process of its own, with limits of time and memory.

A thread cannot be stopped and memory cannot be taken back from it; a process can be killed. So what a hostile input
does in there, ordinary code out here is told, and goes on.
"""

from ballast.guarded.process import GuardedProcess, LimitExceededError, Limits, TaskFailedError

__all__ = ["GuardedProcess", "LimitExceededError", "Limits", "TaskFailedError"]
