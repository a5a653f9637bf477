"""The line of runs that wait for the model.

Contract: one run at a time has the model; the others wait in order of arrival and know their place. Everything here runs in the
server's event loop, except `Ticket.leave`, which any thread may call. Leaving the line, at any place in it, is final.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Ticket:
    """A place in the line; 0 means that it is this ticket's turn."""

    def __init__(self, line: Line):
        self._line = line
        self._loop = asyncio.get_running_loop()
        self.left = False

    @property
    def place(self) -> int:
        """How many are ahead."""
        try:
            return self._line.waiting.index(self)
        except ValueError:
            return 0

    def leave(self) -> None:
        """Give the place up (thread-safe, may be called twice)."""
        if not self.left:
            self.left = True
            try:
                self._loop.call_soon_threadsafe(self._line.drop, self)
            except RuntimeError:  # the loop has ended, and with it whoever waited
                self._line.drop(self)


class Line:
    """First come, first served."""

    def __init__(self) -> None:
        self.waiting: deque[Ticket] = deque()

    def enter(self) -> Ticket:
        """Join at the end."""
        ticket = Ticket(self)
        self.waiting.append(ticket)
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Remove a ticket that has left."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)
