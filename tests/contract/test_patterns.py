"""No pattern of the package takes more than linear time, whatever text it is given: one that does lets a passage, a page or
an earlier message stop the event loop.

Every pattern is measured, found by importing the modules and by reading their source, on texts made from the pattern's own
parts: what it repeats, often, after what it begins with, and with nothing that would let it end.
"""

import ast
import importlib
import itertools
import re
from collections import deque
from collections.abc import Callable
from re import _constants as op
from re import _parser  # the only way to ask a pattern what it repeats

import pytest
from architecture import MODULES

from growing import growth
from parallelsearch import grammar

TRUSTED = {
    "parallelsearch.coldstart": "files that are read once, offline, by who wrote the recipe",
    "parallelsearch.evaluation.page": "cells of our own tables",
    "parallelsearch.training": "a recipe, and what the trainer printed",
    "parallelsearch.policy.models": "an address that the user typed",
    "parallelsearch.data.alternatives": "questions of a data set, runs of spaces folded before",
    "parallelsearch.dialects.released": "one turn of a model, which ends at max_tokens_per_turn",
    "parallelsearch.retrieval.plan": "an address that the user typed",
    "parallelsearch.retrieval.corpus: inline 0": "200 characters of our own messages",
}
"""What sees no text from outside, and what it sees."""
CALLS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
SIZES = 1_000, 10_000


def inline_patterns(source: str) -> list[tuple[str, str]]:
    """Patterns that are given to `re` as they stand, without a name, and what is done with them."""
    return [
        (node.args[0].value, node.func.attr)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS
        and isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
        and node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    ]  # fmt: skip


def is_anchored(calls: list[str]) -> bool:
    """It is only asked whether a text begins so, or is so: never looked for at every place."""
    return bool(calls) and set(calls) <= {"match", "fullmatch"}


def all_patterns() -> dict[str, tuple[re.Pattern[str], bool]]:
    found: dict[str, tuple[re.Pattern[str], bool]] = {}
    for path, module in MODULES.items():
        if any(module.startswith(known) for known in TRUSTED):
            continue
        source = path.read_text()
        for number, (pattern, call) in enumerate(inline_patterns(source)):
            if (name := f"{module}: inline {number}") not in TRUSTED:
                found[name] = re.compile(pattern), is_anchored([call])
        if "re.compile" not in source:
            continue
        try:
            values = vars(importlib.import_module(module))
        except ImportError:  # an extra that is not installed here
            continue
        for name, value in values.items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found[f"{module}: {name}"] = value, is_anchored(re.findall(rf"\b{name}\.(\w+)\(", source))
    found["parallelsearch.grammar: the disarmer"] = grammar._disarmer(frozenset()).pattern, False
    return found


def letters_of(items) -> str:
    """One text that the items match, or nearly."""
    text = ""
    for kind, value in items:
        if kind is op.LITERAL:
            text += chr(value)
        elif kind is op.IN:
            text += letter_in(value)
        elif kind is op.ANY or kind is op.NOT_LITERAL:
            text += "a"
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            text += letters_of(value[2]) * max(1, value[0])
        elif kind is op.SUBPATTERN:
            text += letters_of(value[3])
        elif kind is op.ATOMIC_GROUP:
            text += letters_of(value)
        elif kind is op.BRANCH:
            text += letters_of(value[1][0])
    return text


def letter_in(choices) -> str:
    is_negated = choices[0][0] is op.NEGATE
    for candidate in ' a0<#-.,\tA"':
        if re.fullmatch(_class_of(choices), candidate):
            return candidate
    first = choices[0]
    return "~" if is_negated else chr(first[1] if first[0] is op.LITERAL else first[1][0])


def _class_of(choices) -> str:
    names = {op.CATEGORY_SPACE: r"\s", op.CATEGORY_WORD: r"\w", op.CATEGORY_DIGIT: r"\d", op.CATEGORY_NOT_SPACE: r"\S"}
    text = ""
    for kind, value in choices:
        if kind is op.NEGATE:
            text += "^"
        elif kind is op.LITERAL:
            text += re.escape(chr(value))
        elif kind is op.RANGE:
            text += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        elif kind is op.CATEGORY:
            text += names.get(value, r"\w")
    return f"[{text}]"


def repeated_in(items, before: str = ""):
    """`(what comes before, what is repeated)` for everything without an upper bound."""
    for kind, value in items:
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            if value[1] is op.MAXREPEAT:
                yield before, letters_of(value[2])
            yield from repeated_in(value[2], before)
            before += letters_of([(kind, value)])
        elif kind is op.SUBPATTERN:
            yield from repeated_in(value[3], before)
            before += letters_of(value[3])
        elif kind is op.ATOMIC_GROUP:
            yield from repeated_in(value, before)
            before += letters_of(value)
        elif kind is op.BRANCH:
            for branch in value[1]:
                yield from repeated_in(branch, before)
            before += letters_of(value[1][0])
        else:
            before += letters_of([(kind, value)])


def attacks_on(pattern: re.Pattern[str]):
    parsed = _parser.parse(pattern.pattern, pattern.flags)
    pumps = list(dict.fromkeys(repeated_in(parsed)))
    for before, pump in pumps[:8]:
        if pump:
            yield lambda n, b=before, p=pump: b + p * (n // len(p)) + "\x01"
            yield lambda n, b=before, p=pump: (b + p) * (n // len(b + p)) + "\x01"
    for (first, one), (_, other) in itertools.islice(itertools.product(pumps, pumps), 6):
        if one and other and one != other:
            yield lambda n, b=first, p=one, q=other: b + (p + q) * (n // len(p + q)) + "\x01"
    start = letters_of(list(parsed)[:1]) or "<"
    yield lambda n: start * (n // len(start))


def ratio(
    pattern: re.Pattern[str], make: Callable[[int], str], sizes: tuple[int, int], is_anchored: bool = False
) -> float:
    """How many times longer the larger text takes: ten times as long a text may take fifteen times as long."""

    def search(text: str) -> Callable[[], object]:
        return lambda: pattern.fullmatch(text) if is_anchored else deque(pattern.finditer(text), maxlen=0)

    return growth(search(make(sizes[0])), search(make(sizes[1])), limit=15, floor_s=0.0003)


PATTERNS = all_patterns()


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_a_pattern_takes_time_in_proportion_to_the_text(name):
    pattern, is_anchored = PATTERNS[name]
    for make in attacks_on(pattern):
        assert ratio(pattern, make, SIZES, is_anchored) < 15, (pattern.pattern, make(60))


@pytest.mark.parametrize("bad", [r"<!--.*?-->", r"<\s*/?\s*search>", r"<[^>]*\$", r"(a+)+\$"])
def test_the_measure_finds_what_is_quadratic(bad):
    """Or all of the above would pass whatever they were."""
    sizes = (10, 19) if bad.startswith("(a") else SIZES
    assert any(ratio(re.compile(bad, re.DOTALL), make, sizes) > 15 for make in attacks_on(re.compile(bad, re.DOTALL)))


POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{\d*,?\d*\})\+")


def test_no_group_is_repeated_possessively():
    """Python before 3.11.5 goes on in the wrong place where a round of `(...)*+` fails half way (CPython's gh-106052), and
    Debian 12 has 3.11.2. `(?>(...)*)` says the same and is read rightly there."""
    found = [
        f"{path.name}:{node.lineno}: {node.value}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and POSSESSIVE_GROUP.search(node.value)
    ]
    assert not found, found
    assert POSSESSIVE_GROUP.search(r"(?:a|bc)*+d"), "or the above would pass whatever they were"
