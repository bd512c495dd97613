"""Text from outside: what every passage, question, answer and error message goes through before anybody reads it.

Four readers, four dangers. A file wants text that is UTF-8 (`whole`). A page must link to the web alone (`web_url`). A
terminal must not be sent commands (`printable`). A model must not be shown tags and control tokens as if we had written them
(`Disarmer`). Everything here takes time in proportion to the text, whatever the text is, so that nobody can stop the event
loop with one; the contract tests measure it.
What is not done here: cutting a text to what its reader wants, which is cheaper before than after.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

# ---- files: UTF-8 ----------------------------------------------------------------------------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def whole(text: str) -> str:
    """The text as UTF-8 can hold it: halves of a surrogate pair are joined, and one without the other becomes U+FFFD. JSON,
    command lines and file names can spell such a half; a file with it in cannot be read back."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return _SURROGATE.sub("\ufffd", _PAIR.sub(_joined, text))


def _joined(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def whole_name(name: str) -> str:
    """The name of a file as UTF-8 can hold it. Bytes that are none stay apart, as `\\xe9`: two files keep two names."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def whole_start(text: str) -> tuple[str, str]:
    """`whole` for a text that arrives in pieces: what is whole, and a first half at its end, whose second may still come."""
    half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
    return whole(text.removesuffix(half)), half


def whole_value(value: Any) -> Any:
    """A JSON value in which every text, names included, is whole. Values that are fine come back as they are."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return {whole_value(name): whole_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [whole_value(inner) for inner in value]
    return value


def finite(value: object) -> float | None:
    """A number from outside as a float, or None for whatever is none: words, truth values, NaN, 400 digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


# ---- pages: no links but to the web ----------------------------------------------------------------------------------


def web_url(url: str | None) -> str | None:
    """The address if it is one of the web; anything else (javascript:, data:, file:) is dropped."""
    if url is None:
        return None
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return None
    return url.strip() if parts.scheme.lower() in ("http", "https") and parts.netloc else None


# ---- terminals: no commands ------------------------------------------------------------------------------------------

# C0 but tab and line feed, DEL and C1 (0x9b is ESC [ in one byte), what turns the direction of writing, halves of pairs.
_COMMAND = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text as a terminal may show it: what it would obey stands there as its escape, `\\u001b`. A JSON text means the
    same afterwards as before."""
    return text if text.isascii() and text.isprintable() else _COMMAND.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


# ---- models: no tags and control tokens that are not ours --------------------------------------------------------------

# Never part of ordinary text, so always taken out: control characters, zero-width ones, those that turn the direction of
# writing, and the tag characters, in which whole sentences can be hidden from people.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# Part of ordinary text (hyphenation, emoji, Hangul), and nothing to see inside a tag: passed over when one is looked for.
_PASSED_OVER = ((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
                (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF))  # fmt: skip
# Where the characters are that Unicode says are ASCII in another dress: full-width, mathematical, in circles, ligatures.
_DRESSED = ((0xAA, 0x149), (0x17F, 0x1F3), (0x2B0, 0x2E4), (0x1D2C, 0x1DBF), (0x2010, 0x218F), (0x2460, 0x24FF),
            (0x2A74, 0x2A76), (0x2C7C, 0x2C7D), (0x3200, 0x33FF), (0xFB00, 0xFB06), (0xFE10, 0xFE6F), (0xFF01, 0xFF5E),
            (0x1D400, 0x1D7FF), (0x1F100, 0x1F1FF), (0x1FBF0, 0x1FBF9))  # fmt: skip
_OPENS = re.compile(r"[<\[\]\uff1c\ufe64\uff3b\uff3d\ufe47\ufe48]")
_HARMLESS = str.maketrans("<>[]", "\u2039\u203a()")
_NO_BRACKETS = str.maketrans(
    "<>[]\uff1c\uff1e\ufe64\ufe65\uff3b\uff3d\ufe47\ufe48", "\u2039\u203a()" + 2 * "\u2039\u203a" + "()()"
)

# Control tokens of chat templates, for servers that do not say which tokenizer they have. Where there is a tokenizer, its
# own special tokens come on top. Those in `_LOOSE` count in any case and spacing, because models take them so.
_LOOSE = ("tool_call", "tool_response", "bos", "eos", "pad", "unk", "s", "start_of_turn", "end_of_turn")
_LOOSE_SQUARE = ("INST", "SYSTEM_PROMPT", "AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS")
_ANGLED = (
    r"mask|cls|sep|eod|sop|eop|PAD|UNK|CLS|SEP|MASK_TOKEN|(?:BOS|EOS|EOP)_TOKEN|tools|tool_calls|SPECIAL_\d{1,5}"
    r"|unused_?\d{1,5}|reserved_(?:token_)?\d{1,5}|extra_id_\d{1,5}|(?:seed|minimax):[a-z_]{1,40}"
    r"|repo_?name|file_sep|filename|gh_stars|issue_(?:start|comment|closed)|empty_output"
    r"|jupyter_(?:start|text|code|output|script)|commit_(?:before|msg|after)|fim_(?:prefix|middle|suffix|pad)"
    r"|(?:start|end)_of_(?:image|audio)|(?:image|audio)_soft_token"
)
_SQUARED = (
    r"THINK|TOOL_CONTENT|ARGS|CALL_ID|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|TRANSCRIBE|PREFIX|MIDDLE|SUFFIX"
    r"|MODEL_SETTINGS|REFERENCE_DOC_\d{1,4}|[gs]?MASK|CLS|SEP|PAD|UNK|BOS|EOS|unused\d{1,5}|UNUSED_TOKEN_\d{1,5}"
    r"|control_\d{1,5}|multimodal"
)


@lru_cache(maxsize=1)
def _folds() -> tuple[dict[int, str], re.Pattern[str]]:
    """What each character stands for that is ASCII in another dress, or nothing at all; and a pattern that finds them."""
    folds = {code: "" for first, last in _PASSED_OVER for code in range(first, last + 1)}
    for first, last in _DRESSED:
        for code in range(first, last + 1):
            plain = unicodedata.normalize("NFKC", chr(code))
            if plain != chr(code) and plain.isascii() and not plain.isspace():
                folds[code] = plain
    return folds, re.compile("[" + "".join(map(chr, sorted(folds))) + "]")


class Disarmer:
    """Makes tags and control tokens harmless. They stay readable: angle brackets become single guillemets, square ones round.

    `words` are the names of tags; `tokens` the special tokens of a tokenizer. One without a bracket in it is left alone: it
    could only be broken by changing words.
    """

    def __init__(self, words: Sequence[str], tokens: Iterable[str] = ()) -> None:
        # Possessive throughout: no run of spaces is read twice. One alternative for each bracket: most fail at once.
        angled, squared, slash = "|".join((*words, *_LOOSE)), "|".join(_LOOSE_SQUARE), r"\s*+(?>(?:/\s*+)?)"
        known = re.compile(
            rf"<(?:[|\uff5c][^<>]{{0,64}}[|\uff5c]>|\|\w{{1,40}}+>|<{slash}(?i:SYS)\s*+>>"
            rf"|(?=[\s/\w])(?:{slash}(?i:{angled}){slash}>|/?(?:{_ANGLED})>|\w{{1,40}}+\|>))"
            rf"|\[(?:{slash}(?i:{squared})\s*+\]|/?(?:{_SQUARED})\]|e~\[)|\]~!?b[\[\]]"
        )
        others = {token for token in tokens if re.search(r"[<>\[\]]", token) and not known.fullmatch(token)}
        longest_first = sorted(others, key=lambda token: (-len(token), token))
        self.pattern = re.compile("|".join([known.pattern, *map(re.escape, longest_first)]))

    def __call__(self, text: str) -> str:
        text = _INVISIBLE.sub("", whole(text))
        if not _OPENS.search(text):
            return text
        once = self._once(text)
        if once is text:
            return text
        # Only brackets round brackets are left after that. Whoever writes so gets no bracket at all.
        return once if self._once(once) is once else once.translate(_NO_BRACKETS)

    def _once(self, text: str) -> str:
        """The text with what the pattern finds made harmless; the same object if it finds nothing."""
        folds, dressed = _folds()
        if text.isascii() or not dressed.search(text):
            cleaned, count = self.pattern.subn(lambda match: match[0].translate(_HARMLESS), text)
            return cleaned if count else text
        plain = dressed.sub(lambda match: folds[ord(match[0])], text)
        if self.pattern.search(plain) is None:
            return text
        places = [at for at, char in enumerate(text) for _ in folds.get(ord(char), char)]
        pieces: list[str] = []
        done = 0
        for match in self.pattern.finditer(plain):
            pieces += (text[done : places[match.start()]], match[0].translate(_HARMLESS))
            done = places[match.end() - 1] + 1
        return "".join([*pieces, text[done:]])
