"""Lists of verification pairs as text, in the four ways that the field writes them.

A list is told by its lines: `name 1 4` and `name 1 other 2` (LFW, RFW), `1 path path` or `path path 1` (lists for
ArcFace-style code), `path 1` on two lines for each pair (CALFW, CPLFW), and `path` on two lines (SLLFW). A first line
may announce folds (`10 300`), announce pairs without folds (`500`, LFW's View 1), or name the columns in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedvisage.core.errors import FedVisageError
from fedvisage.faces.importing.folds import LEAST_BLOCK, Flags, assign_folds
from fedvisage.faces.importing.source import whole
from fedvisage.faces.records import Indices

Called = str | tuple[str, int]
"""What a list calls an image: a path, or a person and a number."""
_NUMBER = re.compile(r"[0-9]+")
_NUMBERED = re.compile(r"(.+)_(\d+)")
_ANSWERS = ("0", "1", "-1")


@dataclass
class Pairs:
    """The pairs of a list."""

    left: list[Called] = field(default_factory=list)
    right: list[Called] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    """Where each pair begins, counted from 1."""
    fold: list[int] | None = None
    """Of each pair, where the list says so; all 0 where it says that there are none."""
    announced: bool = False
    """Whether the first line says how many pairs there are."""
    skipped: list[str] = field(default_factory=list)
    """Lines that are no pairs, such as comments."""

    def add(self, left: Called, right: Called, same: bool, line: int) -> None:
        """One more pair."""
        self.left.append(left)
        self.right.append(right)
        self.same.append(same)
        self.line.append(line)

    def folds(self) -> tuple[Indices, str]:
        """The folds (N,), and the rule by which they were assigned where the list does not say them."""
        flags: Flags = np.array(self.same, dtype=np.bool_)
        return assign_folds(flags) if self.fold is None else (np.array(self.fold, dtype=np.int64), "")


@dataclass(frozen=True)
class Line:
    """A line of a list, in words."""

    number: int
    words: list[str]
    where: str

    @property
    def text(self) -> str:
        """The words, as a message shows them."""
        return " ".join(self.words)[:60]

    def wrong(self, why: str) -> FedVisageError:
        """What to raise for this line."""
        return FedVisageError(f"{self.where}, line {self.number}: '{self.text}' {why}")

    def whole(self, place: int) -> int:
        """A word as a number."""
        return whole(self.words[place], f"{self.where}, line {self.number}")


def parse_pairs(text: str, where: str) -> Pairs:
    """The pairs in a list of any of the four ways."""
    pairs = Pairs()
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        words = _words(raw)
        if words and words[0].startswith("#"):
            pairs.skipped.append(f"line {number} ('{raw.strip()[:40]}')")
        elif words:
            lines.append(Line(number, words, where))
    header = _header(lines)
    if not lines:
        raise FedVisageError(f"{where} holds no pairs")
    kind = _kind(lines[0].words)
    if kind is None:
        raise lines[0].wrong(f"is no pair: it has {len(lines[0].words)} words")
    for line in lines:
        if _kind(line.words) != kind:
            cut = ": is the list cut off?" if line is lines[-1] else ""
            raise line.wrong(f"is no pair, the lines before are like '{lines[0].text}'{cut}")
    _READERS[kind](lines, pairs)
    _announced(pairs, header, where)
    if pairs.fold is None and _cut_off(pairs.same):
        raise lines[-1].wrong("is the last line, in the middle of a block: the list is cut off")
    return pairs


def _words(line: str) -> list[str]:
    """What stands between the tabs of a line, where that can be a pair, or between its spaces."""
    tabbed = [word.strip() for word in line.split("\t") if word.strip()]
    return tabbed if len(tabbed) > 1 and _kind(tabbed) is not None else line.split()


def _header(lines: list[Line]) -> list[int]:
    """Take the first line off where it is none of the pairs: its numbers, where it consists of them."""
    if len(lines) < 2:
        return []
    first, kind = lines[0].words, _kind(lines[1].words)
    if len(first) <= 2 and all(_NUMBER.fullmatch(word) for word in first):
        header = lines.pop(0)
        return [header.whole(place) for place in range(len(first))]
    words = not any(_NUMBER.fullmatch(word) or "." in word or "/" in word for word in first)
    if words and kind is not None and (_kind(first) != kind or (kind == "path" and len(lines) % 2)):
        lines.pop(0)
    return []


def _kind(words: Sequence[str]) -> str | None:
    """Which of the four ways a line is written in."""
    if len(words) == 1:
        return "path"
    if len(words) == 2:
        return "token" if re.fullmatch(r"-?[0-9]+", words[1]) else None
    if len(words) == 3 and _answer(words) is not None:
        return "answer"
    if len(words) == 3 and _are_numbers(words[1], words[2]):
        return "number"
    return "number" if len(words) == 4 and _are_numbers(words[1], words[3]) else None


def _are_numbers(*words: str) -> bool:
    return all(_NUMBER.fullmatch(word) for word in words)


def _answer(words: Sequence[str]) -> int | None:
    """Where the answer is in a line with two paths: 0 or 2."""
    for place, others in ((0, words[1:]), (2, words[:2])):
        if words[place] in _ANSWERS and all("." in other or "/" in other or "\\" in other for other in others):
            return place
    return None


def _by_number(lines: Sequence[Line], pairs: Pairs) -> None:
    for line in lines:
        words = line.words
        other = words[0] if len(words) == 3 else words[2]
        left, right = (words[0], line.whole(1)), (other, line.whole(len(words) - 1))
        pairs.add(left, right, other == words[0], line.number)


def _with_answer(lines: Sequence[Line], pairs: Pairs) -> None:
    for line in lines:
        place = _answer(line.words)
        left, right = line.words[1:] if place == 0 else line.words[:2]
        pairs.add(left, right, line.words[place or 0] == "1", line.number)


def _couples(lines: Sequence[Line]) -> list[tuple[Line, Line]]:
    if len(lines) % 2:
        raise lines[-1].wrong("has no second image on a line after it: is the list cut off?")
    return list(zip(lines[::2], lines[1::2], strict=True))


def _on_two_lines(lines: Sequence[Line], pairs: Pairs) -> None:
    for one, other in _couples(lines):
        left, right = one.words[0], other.words[0]
        pairs.add(left, right, _person(left) == _person(right), one.number)


def _with_tokens(lines: Sequence[Line], pairs: Pairs) -> None:
    """A number on each line: 0 for different people, else 1, or the fold of a same pair (CALFW)."""
    tokens = []
    for one, other in _couples(lines):
        if one.words[1] != other.words[1]:
            raise other.wrong(f"ends otherwise than line {one.number} of the same pair: is a line missing above?")
        tokens.append(one.whole(1))
        pairs.add(one.words[0], other.words[0], tokens[-1] > 0, one.number)
    folds = sorted({token for token in tokens if token > 0})
    if len(folds) > 1:
        pairs.fold = _shared_out(tokens, folds, lines[0].where)


def _shared_out(tokens: Sequence[int], folds: Sequence[int], where: str) -> list[int]:
    """Folds by the numbers of same pairs; different pairs, which have none, follow in as many equal parts."""
    others = sum(token <= 0 for token in tokens)
    if others % len(folds) or not others:
        raise FedVisageError(
            f"{where} numbers {len(folds)} folds of same pairs, and its {others:,} different pairs cannot be shared "
            "out to them equally: is it cut off?"
        )
    following = iter([fold for fold in folds for _ in range(others // len(folds))])
    return [token if token > 0 else next(following) for token in tokens]


def _announced(pairs: Pairs, header: Sequence[int], where: str) -> None:
    """Hold the list against its first line: folds and pairs of either kind in each, or pairs of either kind."""
    if not header:
        return
    pairs.announced = True
    count, same = len(pairs.same), sum(pairs.same)
    if len(header) == 1:
        if header[0] * 2 != count or same != header[0]:
            raise FedVisageError(
                f"{where}, line 1 announces {header[0]} same and {header[0]} different pairs; the list holds {same:,} "
                f"and {count - same:,}: is it cut off, or another list's first line?"
            )
        pairs.fold = [0] * count
        return
    folds, each = header
    if folds < 1 or folds * each * 2 != count:
        raise FedVisageError(
            f"{where}, line 1 announces {folds} x {each} x 2 pairs and the list holds {count:,}: is it cut off?"
        )
    if pairs.fold is None:
        pairs.fold = [1 + number // (2 * each) for number in range(count)]


def _cut_off(same: Sequence[bool]) -> bool:
    """Whether all blocks of same and of different pairs are of one size but for the last, which is smaller or lacks."""
    ends = np.append(np.flatnonzero(np.diff(np.array(same))) + 1, len(same))
    lengths = np.diff(ends, prepend=0)
    if len(lengths) < 3 or lengths[:-1].min() < LEAST_BLOCK:
        return False
    kinds = [set(lengths[:-1][start::2]) for start in (0, 1)]
    last = kinds[(len(lengths) - 1) % 2]
    return len(kinds[0]) == len(kinds[1]) == 1 and bool(lengths[-1] < min(last) or (len(lengths) % 2 and last))


_READERS: dict[str, Callable[[Sequence[Line], Pairs], None]] = {
    "path": _on_two_lines,
    "token": _with_tokens,
    "answer": _with_answer,
    "number": _by_number,
}


def _person(path: str) -> str:
    """Whose image a path is: the folder's name, or the file's without its number where it is in no folder."""
    path = path.replace("\\", "/")
    return path.rpartition("/")[0].rpartition("/")[2] or flat_name(path)


def flat_name(path: str) -> str:
    """Whose image a file is by its own name, which may end in a number."""
    stem = _stem(path)
    numbered = _NUMBERED.fullmatch(stem)
    return numbered[1] if numbered else stem


def _stem(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def numbered_name(path: str) -> tuple[str, int] | None:
    """Person and number of a file such as `Ann_0001.jpg`."""
    numbered = _NUMBERED.fullmatch(_stem(path))
    return (numbered[1], int(numbered[2])) if numbered and len(numbered[2]) < 10 else None
