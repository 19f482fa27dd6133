"""`Check`: one question about a run and its answer; `Checks` asks many, whatever the others answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from mappings.errors import UserError

T = TypeVar("T")
Outcome = Literal["pass", "warning", "fail", "skipped"]


@dataclass(frozen=True)
class Check:
    """One question and its answer."""

    name: str
    verdict: Outcome
    message: str
    """What was found, on one line."""
    code: str | None = None
    """Of a warning, see `advice`."""

    @property
    def line(self) -> str:
        """For the terminal."""
        mark = {"pass": "ok     ", "warning": f"{self.code or 'warning':7}", "fail": "FAIL   ", "skipped": "-      "}
        return f"{mark[self.verdict]} {self.name}: {self.message}"


class Checks:
    """Collects answers.

    Attributes:
        found: the answers, in the order of the questions.
    """

    def __init__(self) -> None:
        self.found: list[Check] = []

    def ask(self, name: str, question: Callable[[], str | list[str]]) -> None:
        """Notes what a question answers, or why it cannot be answered."""
        answer = self.get(name, question)
        if answer is not None:
            self.passed(name, answer if isinstance(answer, str) else "; ".join(answer) or "nothing to say")

    def get(self, name: str, question: Callable[[], T]) -> T | None:
        """The answer of a question, of which only a failure is noted; None then."""
        try:
            return question()
        except UserError as error:
            self.found.append(Check(name, "fail", " ".join(str(error).split())))
            return None

    def passed(self, name: str, message: str) -> None:
        """Notes something that is right."""
        self.found.append(Check(name, "pass", message))

    def warn(self, name: str, code: str, message: str) -> None:
        """Notes something that would start but is likely to disappoint."""
        self.found.append(Check(name, "warning", message, code))

    def skip(self, names: list[str], why: str) -> None:
        """Notes questions that make no sense because of an earlier answer."""
        self.found += [Check(name, "skipped", why) for name in names]
