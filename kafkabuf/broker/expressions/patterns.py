"""Matches names with a regular expression in bounded time: topics (KIP-848) and transactional ids (KIP-1152).

Python's `re` backtracks: a pattern such as `(a+)+b` would stop the event loop for ever. This module follows all ways
through the expression at once, as RE2 does, and remembers each step (a lazy deterministic automaton). A step costs at
most as many visits as the program has instructions. An expression that needs too many of them is refused.

An expression matches the whole name, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kafkabuf.broker.expressions.syntax import (
    TOPIC_CHARACTERS,
    WORD,
    Assertion,
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    parse,
)
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.errors import InvalidRegularExpressionError

# Nodes that the compiler may write, repetitions included.
_MOST_NODES = 5_000
# Instructions that one call of `matching` may visit: a tenth of a second, about.
_MOST_VISITS = 200_000
_MOST_STATES = 2_000
# Visits, and characters of names, in a step of the work.
_VISITS = 1_000
_CHARACTERS = 5_000
# The character after the last one of a name, and the character before the first.
_END = ""


@dataclass(slots=True)
class _Instruction:
    """`characters`: the next character must be one of them. `assertion`: it must hold. Without both, and without
    `next`, the instruction is the end of the program."""

    next: tuple[int, ...]
    characters: Characters | None = None
    assertion: Assertion | None = None


class _Compiler:
    """Writes the program from its end: each node is written in front of the instruction that follows it."""

    def __init__(self) -> None:
        self.program = [_Instruction(())]
        self._nodes = 0

    def write(self, node: Node, following: int) -> int:
        """Returns the index of the node's first instruction."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise InvalidRegularExpressionError(f"the expression has more than {_MOST_NODES} parts and repetitions")
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                following = self.write(part, following)
            return following
        if isinstance(node, Choice):
            return self._append(tuple(self.write(branch, following) for branch in node.branches))
        if isinstance(node, Repeat):
            return self._write_repeat(node, following)
        if isinstance(node, Assertion):
            return self._append((following,), assertion=node)
        return self._append((following,), characters=node)

    def _write_repeat(self, repeat: Repeat, following: int) -> int:
        if repeat.most is None:
            loop = self._append((following,))
            self.program[loop].next = (self.write(repeat.node, loop), following)
            following = loop
        else:
            end = following
            for _ in range(repeat.most - repeat.least):
                following = self._append((self.write(repeat.node, following), end))
        for _ in range(repeat.least):
            following = self.write(repeat.node, following)
        return following

    def _append(
        self, following: tuple[int, ...], *, characters: Characters | None = None, assertion: Assertion | None = None
    ) -> int:
        self.program.append(_Instruction(following, characters, assertion))
        return len(self.program) - 1


@dataclass(slots=True, eq=False)
class _State:
    """A state of the automaton: the instructions to go on with, and whether the last character was a letter, a digit or
    "_" (None at the start). `next` has the states behind it, as far as they are known."""

    instructions: frozenset[int]
    before: bool | None
    next: dict[str, _State] = field(default_factory=dict)


class Pattern:
    def __init__(self, expression: str, alphabet: Characters = TOPIC_CHARACTERS) -> None:
        """Matches names with characters of the alphabet. Raises InvalidRegularExpressionError."""
        compiler = _Compiler()
        self._start = _State(frozenset((compiler.write(parse(expression, alphabet), 0),)), None)
        self._program = compiler.program
        self._states: dict[tuple[frozenset[int], bool], _State] = {}
        self._visits = 0

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """The names that match. Raises InvalidRegularExpressionError if that takes too long."""
        return finish(self.matching_in_steps(names))

    def matching_in_steps(self, names: Iterable[str]) -> Work[frozenset[str]]:
        """As `matching`, in steps."""
        self._visits = characters = pause = 0
        found = []
        for name in names:
            state = self._start
            for character in (*name, _END):
                following = state.next.get(character)
                if following is None:
                    following = self._follow(state, character)
                    if self._visits > pause:
                        pause = self._visits + _VISITS
                        yield
                state = following
            if state.instructions:
                found.append(name)
            characters += len(name)
            if characters > _CHARACTERS:
                characters = 0
                yield
        return frozenset(found)

    def _follow(self, state: _State, character: str) -> _State:
        """The state behind `character`. Behind the end: the end of the program, if it is reached."""
        pending, before = list(state.instructions), state.before
        seen = set(pending)
        reached = set()
        while pending:
            index = pending.pop()
            instruction = self._program[index]
            if instruction.characters is not None:
                if character in instruction.characters:
                    reached.add(instruction.next[0])
            elif instruction.assertion is None or _holds(instruction.assertion, before, character):
                if not instruction.next and character == _END:
                    reached.add(index)
                fresh = [following for following in instruction.next if following not in seen]
                seen.update(fresh)
                pending += fresh
        self._visits += len(seen)
        if self._visits > _MOST_VISITS:
            raise InvalidRegularExpressionError("it takes too long to match the expression with all names")
        if len(self._states) >= _MOST_STATES:
            self._states.clear()
            self._start.next.clear()
        key = frozenset(reached), character in WORD
        following = state.next[character] = self._states.setdefault(key, _State(*key))
        return following


def _holds(assertion: Assertion, before: bool | None, character: str) -> bool:
    if assertion is Assertion.START:
        return before is None
    if assertion is Assertion.END:
        return character == _END
    return (bool(before) != (character in WORD)) == (assertion is Assertion.BOUNDARY)
