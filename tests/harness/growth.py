"""Texts that patterns may be slow with, made from the patterns, and how time grows with texts."""

import ast
import gc
import importlib
import inspect
import pkgutil
import re
import string
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]  # patterns have no public parser
from re import _parser as parser  # type: ignore[attr-defined]  # as above
from typing import Any, Final, NamedTuple, TypeAlias

import opdbus

PACKAGE: Final = Path(opdbus.__file__).parent
# Each is four times the one before; the first ones are small enough for an exponential pattern.
SIZES: Final = (6, 24, 96, 384, 1536)
# Four times for a text four times as long, and half as much again for what memory does.
MOST: Final = 6.0
# In so little time nothing that grows with the square has done much yet.
_TINY_SECONDS: Final = 0.001
# So long a time is no accident: it need not be measured again.
_LONG_SECONDS: Final = 0.2
_RUNS: Final = 9
_ENDINGS: Final = ("", "!", "\x01\n")
_MOST_VARIANTS: Final = 4
_MOST_TOKENS: Final = 200
_REPEATS: Final = frozenset({codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT})
_CHARACTERS: Final = "a1 -.:/=\n\t,Az" + string.punctuation
_METHODS: Final = frozenset("match fullmatch search finditer findall sub subn split".split())
_ONCE: Final = frozenset({"match", "fullmatch", "search"})


class Used(NamedTuple):
    """A pattern, where it stands, and the methods of it that the code calls."""

    where: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


class Text(NamedTuple):
    """A text of any length: a beginning, a token that is repeated, and an ending."""

    prefix: str
    token: str
    ending: str

    def of(self, size: int) -> str:
        """Give it with about so many characters."""
        return self.prefix + self.token * (size // len(self.token)) + self.ending


def growth(work: Callable[[str], object], text: Text, sizes: Iterable[int] = SIZES) -> float:
    """Return by how much the time of work grows where a text is four times as long, at most.

    0 where even the longest takes no time worth telling.
    """
    worst = 0.0
    before = _seconds(work, text.of(next(iter(sizes))))
    for small, large in pairwise(sizes):
        spent = _seconds(work, text.of(large))
        if spent > _TINY_SECONDS:
            if MOST * before < spent < _LONG_SECONDS:
                before = min(_seconds(work, text.of(small)) for _ in range(_RUNS))
                spent = min(spent, *(_seconds(work, text.of(large)) for _ in range(_RUNS)))
            if spent > _TINY_SECONDS:
                found = spent / before
                if found > MOST and spent < _LONG_SECONDS:
                    # a pattern with a bounded window grows faster until the text fills the window
                    found = min(found, _seconds(work, text.of(4 * large)) / spent)
                worst = max(worst, found)
            if worst > MOST:
                break
        before = spent
    return worst


def _seconds(work: Callable[[str], object], text: str) -> float:
    # its passes over all that there is take more time the more there is
    gc.disable()
    try:
        before = time.thread_time()
        work(text)
        return max(time.thread_time() - before, 1e-6)
    finally:
        gc.enable()


def slow_texts(used: Used) -> Iterator[tuple[str, Text, float]]:
    """Yield the texts that a pattern is slow with, by the method that is called."""
    for method, work, text in _works(used):
        if (found := growth(work, text)) > MOST:
            yield method, text, found


def longest_seconds(used: Used, size: int) -> float:
    """Return the processor time that a pattern takes for the worst text of so many characters."""
    return max(_seconds(work, text.of(size)) for _, work, text in _works(used))


def _works(used: Used) -> Iterator[tuple[str, Callable[[str], object], Text]]:
    pattern = used.pattern
    texts = list(_texts(pattern))
    is_bytes = isinstance(pattern.pattern, bytes)
    for method in sorted(used.methods):

        def work(text: str, method: str = method) -> None:
            given = text.encode("latin-1", "replace") if is_bytes else text
            if method in _ONCE:
                getattr(pattern, method)(given)
            else:
                deque(pattern.finditer(given), 0)

        for text in texts:
            yield method, work, text


def _texts(pattern: re.Pattern[Any]) -> Iterator[Text]:
    """Yield texts of what repetitions of a pattern repeat, each after what comes before it."""
    source = pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    tree = parser.parse(
        text, pattern.flags & ~re.UNICODE if isinstance(source, bytes) else pattern.flags
    )
    tokens: dict[tuple[str, str], None] = {}
    whole = _sample(tree)
    for prefix, body in _repeats(tree, ""):
        for token in (*body, *(token + " " for token in body), " ", "\n", "a", "1"):
            tokens |= dict.fromkeys([("", token), (prefix, token)])
        tokens |= dict.fromkeys([("", prefix), ("", prefix + "".join(body[:1]))])
    tokens |= dict.fromkeys([("", whole), ("", whole + " ")])
    for prefix, token in islice((key for key in tokens if key[1]), _MOST_TOKENS):
        for ending in _ENDINGS:
            yield Text(prefix, token, ending)


def _repeats(tree: Any, before: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what may come before each repetition, and what it repeats."""
    for code, value in tree:
        here = before
        if code in _REPEATS:
            yield here, _variants(value[2])
            yield from _repeats(value[2], here)
        elif code is codes.SUBPATTERN:
            yield from _repeats(value[-1], here)
        elif code is codes.ATOMIC_GROUP:
            yield from _repeats(value, here)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from _repeats(branch, here)
        elif code in {codes.ASSERT, codes.ASSERT_NOT}:
            yield from _repeats(value[1], here)
        before += _sample([(code, value)])


def _sample(tree: Any) -> str:
    """Give a text that a part of a pattern meets, or nearly."""
    return "".join(next(iter(_of(code, value)), "") for code, value in tree)


def _variants(tree: Any) -> list[str]:
    """Give several texts that a part meets, which differ in its first node of several."""
    items = list(tree)
    found = {_sample(items): None}
    for at, (code, value) in enumerate(items):
        for text in islice(_of(code, value), 1, _MOST_VARIANTS):
            found[_sample(items[:at]) + text + _sample(items[at + 1 :])] = None
    return [*islice(filter(None, found), _MOST_VARIANTS)]


def _of(code: Any, value: Any) -> list[str]:
    """Give texts that a node of a pattern meets."""
    if code is codes.LITERAL:
        return [chr(value)]
    if code in {codes.IN, codes.NOT_LITERAL}:
        found = [c for c in _CHARACTERS if _has(code, value, c)]
        own = [chr(v) for kind, v in value if kind is codes.LITERAL] if code is codes.IN else []
        return [*found[:2], *(c for c in own if _has(code, value, c)), *found[2:]] or own
    if code is codes.ANY:
        return ["a", " ", ":"]
    if code in _REPEATS:
        least, _, body = value
        return [text * max(1, least) for text in _variants(body)]
    if code is codes.SUBPATTERN:
        return _variants(value[-1])
    if code is codes.ATOMIC_GROUP:
        return _variants(value)
    if code is codes.BRANCH:
        return [_sample(branch) for branch in value[1]]
    return [""]


def _has(code: Any, value: Any, char: str) -> bool:
    """Return whether a class of characters has one."""
    if code is codes.NOT_LITERAL:
        return ord(char) != value
    is_negated = value[0][0] is codes.NEGATE
    return is_negated is not any(_is(kind, each, char) for kind, each in value)


def _is(kind: Any, value: Any, char: str) -> bool:
    if kind is codes.LITERAL:
        return ord(char) == value
    if kind is codes.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if kind is codes.CATEGORY:
        return _CATEGORIES[value](char)
    return False


_CATEGORIES: Final[Mapping[Any, Callable[[str], bool]]] = {
    codes.CATEGORY_DIGIT: str.isdigit,
    codes.CATEGORY_NOT_DIGIT: lambda char: not char.isdigit(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    codes.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    codes.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}


def patterns() -> list[Used]:
    """Return every pattern of the package: those of its modules, and those written in functions."""
    called, near, written = _calls()
    found: dict[re.Pattern[Any], tuple[set[str], set[str], set[str]]] = {}
    for info in pkgutil.walk_packages([str(PACKAGE)], "opdbus."):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:
            # of an extra that is not installed
            continue
        for name, value in vars(module).items():
            for pattern in _inside(value, 0):
                where, own, others = found.setdefault(pattern, (set(), set(), set()))
                where.add(f"{info.name}.{name}")
                for key in (name, f"{info.name}.{name}")[name.startswith("_") :]:
                    own |= called.get(key, set())
                    others |= near.get(key, set())
    return written + [
        Used(min(where), pattern, frozenset(own or others or _METHODS))
        for pattern, (where, own, others) in found.items()
    ]


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module, but for those that make its constants."""
    makers = {
        node.func.id
        for statement in (tree.body if isinstance(tree, ast.Module) else ())
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_table(child) or child.name in makers:
                continue
            yield child
        yield from _functions(child)


def _is_table(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function reads a table once, which is looked through instead."""
    decorators = {ast.unparse(each) for each in function.decorator_list}
    return "cache" in decorators and not ast.unparse(function.args)


def _inside(value: object, depth: int) -> Iterator[re.Pattern[Any]]:
    if hasattr(value, "cache_info") and not inspect.signature(value).parameters:  # type: ignore[arg-type]
        value = value()  # type: ignore[operator]
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, Mapping) and depth < 4:
        for each in (*value.keys(), *value.values()):
            yield from _inside(each, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth < 4:
        for each in value:
            yield from _inside(each, depth + 1)


_Methods: TypeAlias = Mapping[str, set[str]]


def _calls() -> tuple[_Methods, _Methods, list[Used]]:
    """Return the methods that are called, by constants, and the patterns written in functions.

    First those called of a constant itself, then those called of anything in functions that name
    it: of a pattern that was taken out of a list. A constant is named alone, and after its module.
    """
    called: dict[str, set[str]] = defaultdict(set)
    near: dict[str, set[str]] = defaultdict(set)
    written: list[Used] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("opdbus", *path.relative_to(PACKAGE).with_suffix("").parts))
        tree = ast.parse(path.read_text())
        for function in _functions(tree):
            constants, others = set(), set()
            for node in ast.walk(function):
                if name := _constant(node):
                    constants.add(name)
                owner, method = _method(node)
                if method in _METHODS and owner:
                    called[owner].add(method)
                    called[f"{module}.{owner}"].add(method)
                elif method in _METHODS - {"split"}:
                    # `split` is one of strings as well
                    others.add(method)
            for name in constants:
                near[name] |= others
                near[f"{module}.{name}"] |= others
            written += [_written(module, call) for call in _compiling(function)]
    return called, near, list({used.where: used for used in written}.values())


def _method(node: ast.AST) -> tuple[str, str]:
    """Return a constant and the method that is called of it, also by a function of long_text.py."""
    if isinstance(node, ast.Attribute):
        return _constant(node.value), node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        return _constant(node.args[0]), node.func.id
    return "", ""


def _constant(node: ast.AST) -> str:
    """Return the name of a constant, "" for what is none."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name if name.isupper() else ""


def _compiling(function: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of `re` in a function that are given a pattern."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = node.func.value, node.func.attr
            if isinstance(owner, ast.Name) and owner.id == "re" and name in _METHODS | {"compile"}:
                yield node


def _written(module: str, call: ast.Call) -> Used:
    """Return a pattern that is written where it is used; what is put into it stands as a word."""
    first = call.args[0]
    where = f"{module}:{call.lineno}"
    parts = first.values if isinstance(first, ast.JoinedStr) else [first]
    if not all(isinstance(part, ast.Constant | ast.FormattedValue) for part in parts):
        raise AssertionError(f"the pattern at {where} cannot be read: give it a name")
    source = "".join(
        str(part.value) if isinstance(part, ast.Constant) else "word" for part in parts
    )
    assert isinstance(call.func, ast.Attribute)
    methods = frozenset({call.func.attr}) & _METHODS or _METHODS
    flags = re.MULTILINE if "MULTILINE" in ast.dump(call) else 0
    return Used(where, re.compile(source, flags), methods)
