"""What was asked is kept out of a log, in whatever form a message quotes it."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from string import ascii_lowercase, ascii_uppercase
from urllib.parse import quote, quote_plus

_LEAST = 12
"""So many letters of the beginning of a text are it, cut off; fewer are chance."""
_MOST = 1000
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # "%C3" is "%c3"


def without_asked(message: str, asked: Iterable[str]) -> str:
    """The message, as far as a log needs it, with three dots for each of the texts, whole or cut off."""
    message = message[:_MOST]
    forms = {form for text in asked for form in _forms(text)}
    while piece := max((_found(message.translate(_LOWER), form) for form in forms), key=len, default=""):
        message = re.sub(re.escape(piece), "...", message, flags=re.IGNORECASE | re.ASCII)
    return message


def _forms(text: str) -> set[str]:
    """As it is, on one line, as Python and JSON write it, and as an address of the web has it."""
    one_line = " ".join(text.split())
    told = [text, one_line, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]]
    encoded = [
        write(one, safe, errors="replace")
        for write in (quote, quote_plus)
        for one in (text, one_line)
        for safe in ("", "/:")
    ]
    return {form.translate(_LOWER) for form in (*told, *encoded) if form.strip(". ")}


def _found(message: str, form: str) -> str:
    """The most that the message has of the beginning of `form`; nothing where that is too little."""
    least = min(_LEAST, len(form))
    if form[:least] not in message:
        return ""
    lengths = range(least, len(form) + 1)
    return form[: lengths[bisect_left(lengths, True, key=lambda length: form[:length] not in message) - 1]]
