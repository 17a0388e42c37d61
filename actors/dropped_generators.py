"""An async generator that is dropped half way: its cleanup may await, so it runs as a branch, as asyncio's runs as a task.

A `break` out of an `async for` drops the generator at once, in the middle of a line that cannot wait for its `finally`. Python
tells whoever set `sys.set_asyncgen_hooks`: an event loop makes a task of `aclose()`, we make a branch of it. `aclose()` is an
object of C, so no frame of ours gets into a pin.

Only what the actor's own code drops is closed (I10). A generator that is dropped elsewhere was in a frame that moved or
ended, or in a cycle that the garbage collector found later, perhaps while another actor ran: it goes in silence.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from sojourn.codecs import frames

from .inside import current_driver


class CloseDropped:
    """The finalizer of all async generators that one actor begins; they keep it, also where it goes on another time."""

    __slots__ = ("identity",)

    def __init__(self, identity: str) -> None:
        self.identity = identity
        """Of the actor: `Driver.identity`."""

    def __call__(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Python has found that nothing refers to this generator, which has begun and not ended."""
        driver = current_driver()
        if driver is not None and driver.identity == self.identity:
            driver.add_branch(generator.aclose())
        else:
            frames.discard(generator)


def is_cleanup(coroutine: object) -> bool:
    """Whether a branch runs an `aclose()`: it cleans up already, so the workflow's end waits for it instead of cancelling it."""
    return type(coroutine) is frames.CLOSING
