"""Owns YAML as plans use it: from text to a tree in which every node knows its line.

Does not know a single key of the plan, and does not tell numbers from words: that is the part of values.py.

PyYAML's scanner and parser are used, its composer and constructor are not: those recurse, expand aliases
without bound, let the last of two equal keys win, and read `010` as 8 and `no` as false. The composer here is
a loop over parse events; aliases and merge keys work, within bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import yaml
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.scanner import Scanner

MAX_NODES = 100_000  # aliases expanded
MAX_DEPTH = 50
KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written. `plain` is false where quotes or a block make it text for sure."""

    text: str
    plain: bool
    line: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list; `size` counts its nodes, `height` its levels, aliases expanded."""

    items: tuple["Node", ...]
    line: int
    size: int
    height: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys to (line of the key, value); keys are always text, as written."""

    entries: dict[str, tuple[int, "Node"]]
    line: int
    size: int
    height: int


Node: TypeAlias = Scalar | Sequence | Mapping


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend; `line` counts from 1, None where the file as a whole is meant."""

    line: int | None
    path: KeyPath
    text: str

    def render(self, label: str) -> str:
        """`file:line: key.path: what is wrong, what would be right`."""
        where = label if self.line is None else f"{label}:{self.line}"
        key = render_path(self.path)
        return f"{where}: {key}: {self.text}" if key else f"{where}: {self.text}"


class UnusableTextError(Exception):
    """The text cannot be read any further; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def render_path(path: KeyPath) -> str:
    """`variants[1].kv_bits` of `("variants", 1, "kv_bits")`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + shown(part)
    return text


def shown(text: str, limit: int = 60) -> str:
    """Text from outside, made safe to print: one line, no control characters, not endless."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def read_tree(text: str) -> tuple[Node | None, list[Problem]]:
    """The tree of a YAML document, None where there is none, and every problem met on the way.

    After a syntax error the tree is None: the parser cannot go on behind it.
    """
    composer = _Composer()
    try:
        return composer.compose(text), composer.problems
    except UnusableTextError as stop:
        return None, [*composer.problems, stop.problem]


def line_of(tree: Node | None, path: KeyPath) -> int | None:
    """The line of the deepest part of `path` that the tree has."""
    node, line = tree, tree.line if tree is not None else None
    for part in path:
        if isinstance(node, Mapping) and isinstance(part, str) and part in node.entries:
            line, node = node.entries[part]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            line = node.line
        else:
            break
    return line


def unwrapped(node: Node) -> object:
    """The tree as dicts, lists and Scalars, which is what the plan's model validates."""
    if isinstance(node, Mapping):
        return {key: unwrapped(value) for key, (_, value) in node.entries.items()}
    if isinstance(node, Sequence):
        return [unwrapped(item) for item in node.items]
    return node


class _Events(Reader, Scanner, Parser):
    """PyYAML's pure parser without composer, resolver and constructor: not recursive, builds no objects."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


def _events(text: str) -> Iterator[yaml.Event]:
    """The parse events; whatever PyYAML raises becomes one problem with its line."""
    parser: _Events | None = None
    try:
        parser = _Events(text)
        while parser.check_event():
            yield parser.get_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise UnusableTextError(Problem(line, (), _syntax(error))) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        char = ascii(text[error.position])
        raise UnusableTextError(
            Problem(line, (), f"the character {char} has no place in a plan; leave it out")
        ) from None
    except (ValueError, OverflowError) as error:
        # PyYAML lets through what int() and chr() raise, for "\UFFFFFFFF" for one.
        line = parser.get_mark().line + 1 if parser is not None else None
        raise UnusableTextError(Problem(line, (), f"is not YAML: {shown(str(error))}")) from None


def _syntax(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "syntax error"
    if "'\\t'" in problem:
        return "a tab stands here, where YAML takes spaces only; replace it by spaces"
    mark = error.problem_mark
    column = f" (column {mark.column + 1})" if mark else ""
    context = f"{error.context}: " if error.context else ""
    return f"is not YAML: {shown(context + problem, 200)}{column}; a plan is made of lines `key: value`"


@dataclass(slots=True)
class _Frame:
    """A list or mapping that is still open; a mapping's keys and values alternate in `nodes`."""

    mapping: bool
    line: int
    anchor: str | None
    nodes: list[Node]
    size: int = 1
    height: int = 1

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        if isinstance(node, Scalar):
            self.size += 1
        else:
            self.size += node.size
            self.height = max(self.height, node.height + 1)

    def part(self) -> str | int | None:
        if not self.mapping:
            return len(self.nodes)
        key = self.nodes[-1] if len(self.nodes) % 2 else None
        return key.text if isinstance(key, Scalar) else None


class _Composer:
    """Events to nodes, with a stack of its own in place of recursion."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._stack: list[_Frame] = []
        self._anchors: dict[str, Node | None] = {}  # None: still open
        self._total = 0

    def compose(self, text: str) -> Node | None:
        root: Node | None = None
        documents = 0
        for event in _events(text):
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents == 2:
                    raise UnusableTextError(Problem(line, (), "a second document begins; keep one plan to a file"))
            node = self._take(event, line)
            if node is None:
                continue
            if self._stack:
                frame = self._stack[-1]
                frame.add(node)
                self._bound(frame.size, line)
                self._bound_depth(len(self._stack) - 1 + frame.height, line)
            else:
                root = node
        if isinstance(root, Scalar) and root.plain and not root.text:
            return None
        return root

    def _take(self, event: yaml.Event, line: int) -> Node | None:
        """The node that is complete with this event, if one is."""
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), line)
        if isinstance(event, yaml.ScalarEvent):
            self._refuse_tag(event.tag, line)
            return self._named(event.anchor, self._scalar(event, line))
        if isinstance(event, yaml.CollectionStartEvent):
            self._refuse_tag(event.tag, line)
            self._bound_depth(len(self._stack) + 1, line)
            if event.anchor is not None:
                self._anchors[event.anchor] = None
            self._stack.append(_Frame(isinstance(event, yaml.MappingStartEvent), line, event.anchor, []))
            return None
        if isinstance(event, yaml.CollectionEndEvent):
            return self._close()
        return None

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Scalar:
        self._total += 1
        self._bound(self._total, line)
        text = event.value
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
            self._complain(line, "holds a NUL or half a character; leave it out")
            text = "".join("_" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)
        return Scalar(text, plain=event.style is None, line=line)

    def _alias(self, anchor: str, line: int) -> Node:
        if anchor not in self._anchors:
            raise UnusableTextError(
                Problem(line, self._path(), f"*{shown(anchor)} has no anchor &{shown(anchor)} before it")
            )
        node = self._anchors[anchor]
        if node is None:
            raise UnusableTextError(
                Problem(line, self._path(), f"*{shown(anchor)} stands inside its own anchor; write it out")
            )
        return node

    def _named(self, anchor: str | None, node: Node) -> Node:
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _close(self) -> Node:
        frame = self._stack.pop()
        node: Node
        if frame.mapping:
            node = Mapping(self._entries(frame), frame.line, frame.size, frame.height)
        else:
            node = Sequence(tuple(frame.nodes), frame.line, frame.size, frame.height)
        return self._named(frame.anchor, node)

    def _entries(self, frame: _Frame) -> dict[str, tuple[int, Node]]:
        entries: dict[str, tuple[int, Node]] = {}
        merged: list[Mapping] = []
        merge_line: int | None = None
        for key, value in zip(frame.nodes[::2], frame.nodes[1::2], strict=True):
            if not isinstance(key, Scalar):
                self._complain(key.line, "a list or mapping stands in place of a key; a key is a word")
            elif key.plain and key.text == "<<":
                if merge_line is not None:
                    self._twice("<<", merge_line, key.line)
                merge_line = key.line
                merged += self._merge(value, key.line)
            elif key.text == "":
                self._complain(key.line, "a value without a key; write `key: value`")
            elif key.text in entries:
                self._twice(key.text, entries[key.text][0], key.line)
            else:
                entries[key.text] = (key.line, value)
        for source in merged:  # own keys win, then the first source that has the key
            for text, entry in source.entries.items():
                entries.setdefault(text, entry)
        return entries

    def _merge(self, value: Node, line: int) -> list[Mapping]:
        sources = value.items if isinstance(value, Sequence) else (value,)
        good = [source for source in sources if isinstance(source, Mapping)]
        if len(good) < len(sources) or not sources:
            self._complain(line, "`<<` takes in a mapping or a list of mappings, as in `<<: *anchor`")
        return good

    def _twice(self, key: str, first: int, second: int) -> None:
        text = f"is given twice, at line {first} and again at line {second}; keep one of them"
        self.problems.append(Problem(second, (*self._path(), key), text))

    def _refuse_tag(self, tag: str | None, line: int) -> None:
        if tag is not None:
            name = tag.replace("tag:yaml.org,2002:", "!!")
            self._complain(line, f"the tag {shown(name)} is not part of a plan; leave it out")

    def _complain(self, line: int, text: str) -> None:
        self.problems.append(Problem(line, self._path(), text))

    def _path(self) -> KeyPath:
        parts = (frame.part() for frame in self._stack)
        return tuple(part for part in parts if part is not None)

    def _bound(self, nodes: int, line: int) -> None:
        if nodes > MAX_NODES:
            text = f"the plan holds more than {MAX_NODES} values (aliases count as what they stand for)"
            raise UnusableTextError(Problem(line, (), text))

    def _bound_depth(self, levels: int, line: int) -> None:
        if levels > MAX_DEPTH:
            text = f"is nested deeper than {MAX_DEPTH} levels; no plan needs that"
            raise UnusableTextError(Problem(line, (), text))
