"""The place of a request in the line of its connection, whose answers leave in order."""

from __future__ import annotations

from fencepost.kernel.header import Buffer


class AnswerPlace:
    """It exists before and after the answer is made."""

    __slots__ = ("answer", "api", "began", "cost")

    def __init__(self, cost: int, began: float) -> None:
        self.cost = cost
        self.began = began
        self.api = ""
        """Name of the API, once it is known."""
        self.answer: list[Buffer] | None = None
