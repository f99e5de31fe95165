"""Cancelling what another thread does. Whatever waits for a database looks here again and again,
in Rust (`run.rs`) and for a server (`flight.py`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_of_thread = threading.local()


class Cancelled(BaseException):
    """Ends the work of a thread whose task was cancelled."""


class Task:
    """Work of one thread; a context manager around it, there."""

    def __init__(self) -> None:
        self._is_cancelled = False

    def cancel(self) -> None:
        """End it, from any thread."""
        self._is_cancelled = True

    def check(self) -> None:
        if self._is_cancelled:
            raise Cancelled

    def __enter__(self) -> Task:
        _of_thread.task = self
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        _of_thread.task = None


def is_possible() -> bool:
    """Whether what this thread does can be cancelled."""
    return getattr(_of_thread, "task", None) is not None


def check() -> None:
    """Raises `Cancelled` if what this thread does was cancelled."""
    task: Task | None = getattr(_of_thread, "task", None)
    if task is not None:
        task.check()


async def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Do in a thread what waits. Cancelling the asyncio task cancels the work, and returns when
    it has ended."""
    import asyncio
    import contextvars

    task = Task()
    context = contextvars.copy_context()

    def run() -> T:
        with task:
            return context.run(work, *args, **kwargs)

    future: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([future])
        # It may have ended well, or with an error of its own, in the meantime.
        future.exception()
        raise
