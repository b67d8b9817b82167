"""Reads a regular expression in RE2's syntax, which Kafka uses (RE2/J) for topics and for transactional ids.

The names that are to be matched have the characters of an alphabet only. So a set of characters is a subset of the
alphabet, and a character that no name has is the empty set. RE2 has neither look-around nor back-references: they are
errors, as in Kafka.

    alternation  branch|branch            (...)  (?:...)  (?i)  (?i:...)  (?P<name>...)  (?<name>...)
    repetition   * + ? {n} {n,} {n,m}, each with ? for non-greedy
    characters   . [...] [^...] [[:alpha:]] \\d \\w \\s \\pL \\p{Lu} \\Q...\\E \\x41 \\101
    assertions   ^ $ \\A \\z \\b \\B
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from kafkabuf.errors import InvalidRegularExpressionError

Characters = frozenset[str]
TOPIC_CHARACTERS: Characters = frozenset(string.ascii_letters + string.digits + "._-")
WORD: Characters = frozenset(string.ascii_letters + string.digits + "_")
_NOTHING: Characters = frozenset()
_OCTAL = frozenset(string.octdigits)
_MOST_REPEATS = 1000
_DEEPEST = 100
_LONGEST = 4096
# A set of characters takes as long as the alphabet is large, and an expression may have a thousand sets: a
# tenth of a second, about.
_MOST_CHARACTERS = 200
_PERL: dict[str, Characters] = {"d": frozenset(string.digits), "w": WORD, "s": frozenset("\t\n\f\r ")}
_POSIX: dict[str, Characters] = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, (*range(32), 127))),
    "digit": frozenset(string.digits),
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": frozenset(string.whitespace),
    "upper": frozenset(string.ascii_uppercase),
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROL = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


class Assertion(Enum):
    START = "start"
    END = "end"
    BOUNDARY = "boundary"
    NO_BOUNDARY = "no boundary"


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`most` is None for any number."""

    node: Node
    least: int
    most: int | None


# A set of characters stands for one character of the name.
Node = Characters | Assertion | Sequence | Choice | Repeat


def alphabet_of(names: Iterable[str]) -> Characters:
    """The characters of the names, and their other cases. Raises InvalidRegularExpressionError if they are too many."""
    found = frozenset[str]().union(*names)
    if len(found) > _MOST_CHARACTERS:
        raise InvalidRegularExpressionError(
            f"the names have {len(found)} different characters, {_MOST_CHARACTERS} are allowed"
        )
    return found | frozenset("".join(found).swapcase())


def parse(expression: str, alphabet: Characters) -> Node:
    """Raises InvalidRegularExpressionError."""
    if len(expression) > _LONGEST:
        raise InvalidRegularExpressionError(f"the expression has {len(expression)} characters, {_LONGEST} are allowed")
    return _Parser(expression, alphabet).parse()


class _Parser:
    def __init__(self, expression: str, alphabet: Characters) -> None:
        self._expression = expression
        self._alphabet = alphabet
        self._at = 0
        self._depth = 0
        self._fold = False
        self._dot_all = False
        self._names: set[str] = set()

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._expression):
            raise self._error("unexpected )")
        return node

    def _error(self, reason: str) -> InvalidRegularExpressionError:
        return InvalidRegularExpressionError(
            f"SubscribedTopicRegex `{self._expression}` is not a valid regular expression: {reason}"
        )

    # ---- the text

    def _looking_at(self, text: str) -> bool:
        return self._expression.startswith(text, self._at)

    def _skip(self, text: str) -> bool:
        if not self._looking_at(text):
            return False
        self._at += len(text)
        return True

    def _next(self, missing: str) -> str:
        """The next character. `missing` is the error at the end of the expression."""
        if self._at >= len(self._expression):
            raise self._error(missing)
        self._at += 1
        return self._expression[self._at - 1]

    def _peek(self) -> str:
        """The next character; "" at the end."""
        return self._expression[self._at : self._at + 1]

    def _until(self, end: str, missing: str) -> str:
        position = self._expression.find(end, self._at)
        if position < 0:
            raise self._error(missing)
        text, self._at = self._expression[self._at : position], position + len(end)
        return text

    # ---- structure

    def _choice(self) -> Node:
        branches = [self._sequence()]
        while self._skip("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._expression) and not (self._looking_at("|") or self._looking_at(")")):
            parts += self._quoted() if self._skip("\\Q") else [self._repeated(self._atom())]
        return Sequence(tuple(parts))

    def _quoted(self) -> list[Node]:
        end = self._expression.find("\\E", self._at)
        text = self._expression[self._at :] if end < 0 else self._expression[self._at : end]
        self._at = len(self._expression) if end < 0 else end + 2
        return [self._literal(character) for character in text]

    def _atom(self) -> Node:
        start = self._at
        if self._bounds() is not None:
            operator = self._expression[start : self._at]
            raise self._error(f"missing argument to repetition operator: `{operator}`")
        character = self._next("")
        if character == "(":
            return self._group()
        if character == "[":
            return self._folded(self._bracket())
        if character == ".":
            return self._alphabet if self._dot_all else self._alphabet - {"\n"}
        if character == "^":
            return Assertion.START
        if character == "$":
            return Assertion.END
        if character == "\\":
            return self._escape()
        return self._literal(character)

    def _repeated(self, node: Node) -> Node:
        if (bounds := self._bounds()) is None:
            return node
        self._skip("?")
        start = self._at
        if self._bounds() is not None:
            raise self._error(f"invalid nested repetition operator: `{self._expression[start - 1 : self._at]}`")
        return Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """The bounds of a repetition operator at this place; None without an operator."""
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(operator):
                return bounds
        end = self._expression.find("}", self._at)
        if not self._looking_at("{") or end < 0:
            return None
        least, comma, most = self._expression[self._at + 1 : end].partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            return None
        self._at = end + 1
        low, high = int(least), int(most) if most else None if comma else int(least)
        if low > _MOST_REPEATS or (high is not None and not low <= high <= _MOST_REPEATS):
            raise self._error(f"invalid repeat count: `{{{least}{comma}{most}}}`")
        return low, high

    def _group(self) -> Node:
        flags = self._fold, self._dot_all
        if self._skip("?"):
            if self._skip("P<") or (not self._looking_at("<=") and not self._looking_at("<!") and self._skip("<")):
                name = self._until(">", "invalid named capture")
                if not name or not set(name) <= WORD:
                    raise self._error(f"invalid named capture: `{name}`")
                if name in self._names:
                    raise self._error(f"duplicate capture group name: `{name}`")
                self._names.add(name)
            elif self._flags():
                return Sequence(())
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("expression nests too deeply")
        node = self._choice()
        self._depth -= 1
        if not self._skip(")"):
            raise self._error("missing closing )")
        self._fold, self._dot_all = flags
        return node

    def _flags(self) -> bool:
        """Reads flags. Returns whether they stand alone, as in (?i), where a group would have a colon."""
        negative = False
        while True:
            character = self._next("missing argument to repetition operator: `?`")
            if character == "-" and not negative:
                negative = True
            elif character == "i":
                self._fold = not negative
            elif character == "s":
                self._dot_all = not negative
            elif character in ":)":
                return character == ")"
            elif character not in "mU":
                raise self._error("invalid or unsupported Perl syntax")

    # ---- characters

    def _literal(self, character: str) -> Characters:
        return self._folded(frozenset((character,)) & self._alphabet)

    def _folded(self, characters: Characters) -> Characters:
        if not self._fold:
            return characters
        return characters | ({character.swapcase() for character in characters} & self._alphabet)

    def _escape(self) -> Node:
        assertions = {
            "A": Assertion.START,
            "z": Assertion.END,
            "b": Assertion.BOUNDARY,
            "B": Assertion.NO_BOUNDARY,
        }
        for name, assertion in assertions.items():
            if self._skip(name):
                return assertion
        return self._folded(self._escaped_set())

    def _escaped_set(self) -> Characters:
        """The characters of an escape sequence, behind its backslash."""
        character = self._next("trailing backslash at end of expression")
        if (perl := _PERL.get(character.lower())) is not None:
            return self._alphabet & perl if character.islower() else self._alphabet - perl
        if character in "pP":
            return self._property(negative=character == "P")
        return frozenset((self._escaped_character(character),)) & self._alphabet

    def _escaped_character(self, character: str) -> str:
        if character in _CONTROL:
            return _CONTROL[character]
        if character == "x":
            digits = self._until("}", "invalid escape sequence") if self._skip("{") else self._next("") + self._next("")
            return self._code(digits, 16)
        if character == "0" or (character in _OCTAL and self._peek() in _OCTAL):
            digits = character
            while len(digits) < 3 and self._peek() in _OCTAL:
                digits += self._next("")
            return self._code(digits, 8)
        if character.isascii() and character.isalnum():
            raise self._error(f"invalid escape sequence: `\\{character}`")
        return character

    def _code(self, digits: str, base: int) -> str:
        try:
            return chr(int(digits, base))
        except (ValueError, OverflowError):
            raise self._error(f"invalid escape sequence: `{digits}`") from None

    def _property(self, *, negative: bool) -> Characters:
        name = self._until("}", "invalid character class range") if self._skip("{") else self._next("invalid \\p")
        if name.startswith("^"):
            name, negative = name[1:], not negative
        if name not in _PROPERTIES:
            raise self._error(f"invalid character class range: `\\p{{{name}}}`")
        chosen = frozenset(character for character in self._alphabet if _PROPERTIES[name](character))
        return self._alphabet - chosen if negative else chosen

    def _bracket(self) -> Characters:
        negative, characters = self._skip("^"), _NOTHING
        first = True
        while first or not self._looking_at("]"):
            first = False
            characters |= self._posix() if self._looking_at("[:") else self._range()
        self._skip("]")
        return self._alphabet - self._folded(characters) if negative else characters

    def _posix(self) -> Characters:
        start = self._at
        self._at += 2
        name = self._until(":]", "missing closing ]")
        chosen = _POSIX.get(name.removeprefix("^"))
        if chosen is None:
            raise self._error(f"invalid character class range: `{self._expression[start : self._at]}`")
        return self._alphabet - chosen if name.startswith("^") else self._alphabet & chosen

    def _range(self) -> Characters:
        if re.match(r"\\[dDwWsSpP]", self._expression[self._at : self._at + 2]):
            self._at += 1
            return self._escaped_set()
        low = self._bracket_character()
        if not self._looking_at("-") or self._looking_at("-]"):
            return frozenset((low,)) & self._alphabet
        self._at += 1
        high = self._bracket_character()
        if high < low:
            raise self._error(f"invalid character class range: `{low}-{high}`")
        return frozenset(character for character in self._alphabet if low <= character <= high)

    def _bracket_character(self) -> str:
        character = self._next("missing closing ]")
        return self._escaped_character(self._next("missing closing ]")) if character == "\\" else character


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _in_category(category: str) -> Callable[[str], bool]:
    return lambda character: unicodedata.category(character).startswith(category)


_PROPERTIES: dict[str, Callable[[str], bool]] = {
    "Any": lambda _: True,
    "Latin": lambda character: unicodedata.name(character, "").startswith("LATIN "),
    "Common": lambda character: not character.isalpha(),
    **{
        category: _in_category(category)
        for category in (
            "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps",
            "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf", "Co", "Cs",
        )
    },
}  # fmt: skip
