"""Files that people write, as title and text: plain text, Markdown, reStructuredText and HTML, and those of `office`.

The title is what the file itself calls its first heading, and the file's name only where it has none. Every reader takes
time in proportion to the file, whatever is in it, and a file or its text has at most 32 MiB. Nothing is run, fetched or
rendered.
"""

from __future__ import annotations

import codecs
import html
import io
import itertools
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from parallelsearch.errors import DataError
from parallelsearch.files import MAX_LINE_BYTES, decoded, open_bytes
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.metadata import Metadata, bounded
from parallelsearch.retrieval.office import pdf_document, slides_document, word_document
from parallelsearch.untrusted import whole, whole_name

MAX_TITLE_CHARS = 300
Document = tuple[str, str]
"""Title, which may be empty, and text."""


@dataclass(frozen=True, slots=True)
class PagedPassage(Passage):
    """A document with pages: where in its text each of them begins."""

    page_starts: tuple[int, ...] = field(default=(), kw_only=True)
    are_slides: bool = field(default=False, kw_only=True)
    """No sentence goes on from one page to the next."""


# ---- text ------------------------------------------------------------------------------------------------------------

_HEADING = re.compile(r" {0,3}#{1,6}[ \t]++(.+)")
_UNDERLINE = re.compile(r" {0,3}(?:=++|-++)[ \t]*+")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*+){3,}|(?:_[ \t]*+){3,}|(?:-[ \t]*+){3,}|={3,}+[ \t]*+)")
_NO_TITLE_LINE = re.compile(r" {4}|[ \t]*+(?:$|\t|[-*+][ \t]|\d{1,9}[.)][ \t]|[>|<])")
"""What a line of equal signs or dashes does not make a title: nothing, code, an item, a quote, a table, a tag."""
_FENCE = re.compile(r"(?>(?:[ \t]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(`{3,}+(?=[^`]*+$)|~{3,}+)")
_PICTURE = re.compile(r"data:[a-z]++/[\w.+-]++(?>(?:;[\w-]++=[\w.-]++)*);base64,[a-z0-9+/=]++", re.IGNORECASE)
"""A picture in the text itself. One word of a hundred thousand letters would hide what stands behind it from a model."""
_LINE_OF_SIGNS = re.compile(r"([!-/:-@\[-`{-~])\1++")


def markdown(text: str) -> Document:
    """The title is that of the front matter, which is no part of the text, or else the first heading that is not code.
    Pictures that are written into the text are left out."""
    title, _, text = _front_matter(text)
    text = _PICTURE.sub("", text)
    return title or _first_heading(text), text


def _first_heading(text: str) -> str:
    """A line after `#` signs, or one that stands alone over a line of equal signs or dashes."""
    fence = above = ""
    is_free = True  # a line that begins here goes on with nothing: no paragraph, item or quote
    is_comment = False
    for line in io.StringIO(text):  # by line feeds alone, and no further than the first heading
        line = line.rstrip("\r\n")
        title, above = above, ""
        if fence:
            signs = line.strip()
            if signs.startswith(fence) and not signs.strip(fence[0]):
                fence = ""
        elif is_comment or line.lstrip().startswith("<!--"):
            is_comment, is_free = "-->" not in line, True
        elif opened := _FENCE.match(line):
            fence, is_free = opened[1], True
        elif heading := _HEADING.match(line):
            is_free = True
            if words := _plain_words(_without_closing_signs(heading[1])):
                return words
        elif title and _UNDERLINE.fullmatch(line):
            is_free = True
            if words := _plain_words(title):
                return words
        elif not line.strip() or _RULE.fullmatch(line):
            is_free = True
        else:
            above = line if is_free and not _NO_TITLE_LINE.match(line) else ""
            is_free = False
    return ""


def _without_closing_signs(heading: str) -> str:
    """`## Title ##` is Title, and `# On C#` is On C#."""
    heading = heading.rstrip()
    rest = heading.rstrip("#")
    return rest if not rest or rest[-1] in " \t" else heading


_KEY = re.compile(r"([A-Za-z_][\w.-]*+)[ \t]*+:(?:[ \t]++(.*))?")
_ITEM = re.compile(r"[ \t]*+-[ \t]++(.+)")
_FLOW_ITEM = re.compile(
    r"[ \t]*+(\"(?>(?:[^\"\\]|\\.)*)\"|'(?>(?:[^']|'')*)'|[^,\"'\[\]{}][^,\[\]{}]*+|)[ \t]*+([,\]])"
)
_BEGINS_BELOW = (">", "|", ">-", "|-", ">+", "|+")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_QUOTED = re.compile(r"\"((?>(?:[^\"\\]|\\.)*))\"|'((?>(?:[^']|'')*))'")


def _front_matter(text: str) -> tuple[str, Metadata, str]:
    """The title that the block between `---` at the very beginning gives, its other keys that have a text or a list of texts,
    and the text without that block. A block that holds anything but keys, what is indented below them, items and comments is
    text between two rules."""
    if text[: text.find("\n") + 1].rstrip() != "---":
        return "", {}, text
    lines = text.split("\n")
    title, key, num_keys = "", "", 0
    fields: Metadata = {}
    for number, line in enumerate(lines[1:], start=1):
        line = line.rstrip()
        if line in ("---", "..."):
            return (_unquoted(title), fields, "\n".join(lines[number + 1 :])) if num_keys else ("", {}, text)
        if found := _KEY.fullmatch(line):
            key, num_keys = found[1], num_keys + 1
            written = None if found[2] is None or found[2].startswith("#") else found[2]
            if key.lower() == "title":
                title = written if written is not None and written not in _BEGINS_BELOW else ""
            else:
                fields[key] = [] if written is None else _value(written)
        elif key.lower() == "title" and line.startswith((" ", "\t")):  # a long title goes on below
            title = f"{title} {line.strip()}".strip()[:_MAX_HEADING_CHARS]
        elif (item := _ITEM.fullmatch(line)) and isinstance(fields.get(key), list) and not _KEY.fullmatch(item[1]):
            fields[key].append(_unquoted(item[1]))
        elif line.startswith((" ", "\t", "-")):
            if not line.lstrip().startswith("#"):
                fields.pop(key, None)  # a record, or a text that goes on below
        elif line and not line.startswith(("#", "]", "}")):
            break
    return "", {}, text


def _value(text: str) -> str | list[str] | None:
    """A text or a list in one line; None for the other forms that YAML has."""
    if text.startswith("["):
        items: list[str] = []
        at = 1
        while found := _FLOW_ITEM.match(text, at):  # else a quote or the list is not closed, or another list is in it
            at = found.end()
            if found[2] == ",":
                items.append(_unquoted(found[1]))
                continue
            is_all = text[at:].partition("#")[0].strip() == ""
            return [*items, *([_unquoted(found[1])] if found[1] else [])] if is_all else None
        return None
    return None if text.startswith(("{", "|", ">", "&", "*", "!")) else _unquoted(text)


def _unquoted(value: str) -> str:
    """A value of YAML without its quotes or comment."""
    value = value.strip()
    if quoted := _QUOTED.match(value):
        return whole(_ESCAPE.sub(_unescape, quoted[1])) if quoted[1] is not None else quoted[2].replace("''", "'")
    value = value.partition(" #")[0].rstrip()
    return "" if value in ("~", "null") else value


def _unescape(found: re.Match[str]) -> str:
    code = int(found[1][1:], 16) if len(found[1]) > 1 else 0
    if code:
        return chr(code) if code <= sys.maxunicode else "\ufffd"
    return " " if found[1] in "nt" else found[1]


_LITERAL = re.compile(r"(?<!`)(`++)([^`]++)\1(?!`)|\\([!-/:-@\[-`{-~])")
_LINK = re.compile(r"!?\[([^\[\]]*+)\](?:\((?>(?:[^()]|\([^()]*+\))*)\)|\[[^\[\]]*+\])")
_AUTOLINK = re.compile(r"<([a-z]+://[^<>\s]++)>")
_INLINE_TAG = re.compile(r"</?(?:a|b|br|code|em|i|img|kbd|small|span|strong|sub|sup|u)\b[^<>]*+>", re.IGNORECASE)
_EMPHASIS = (
    re.compile(r"(\*{1,3}|~~)(?=[^\s*~])(.+?)(?<=\S)\1"),
    re.compile(r"(?<!\w)(_{1,3})(?=[^\s_])(.+?)(?<=\S)\1(?!\w)"),
)
_PRIVATE = re.compile("([\ue000-\uf8ff])")
_MAX_HEADING_CHARS = 2_000


def _plain_words(heading: str) -> str:
    """A heading as a reader sees it: the words of a link, no stars. Code and what stands after a backslash stay as they are:
    a sign that no text has keeps their places meanwhile."""
    literals: list[str] = []

    def keep(found: re.Match[str]) -> str:
        literals.append(found[3] or found[2].strip())
        return chr(0xE000 + len(literals) - 1)

    words = _LITERAL.sub(keep, _PRIVATE.sub("", heading[:_MAX_HEADING_CHARS]))
    for _ in range(2):  # a picture may be in a link
        words = _LINK.sub(r"\1", words)
    words = _INLINE_TAG.sub("", _AUTOLINK.sub(r"\1", words))
    for _ in range(2):  # bold may have italics in it
        for emphasis in _EMPHASIS:
            words = emphasis.sub(r"\2", words)
    pieces = enumerate(_PRIVATE.split(words))  # every second one is such a sign; an entity may stand for one, too
    return " ".join("".join(literals[ord(one) - 0xE000] if at % 2 else _unescaped(one) for at, one in pieces).split())


def restructured(text: str) -> Document:
    """The title is the first line with a line of equal signs below it that is at least as long."""
    lines = text.splitlines()
    for line, below in itertools.pairwise(lines):
        title, signs = line.strip(), below.rstrip()
        if (
            title
            and len(signs) >= len(title)
            and _LINE_OF_SIGNS.fullmatch(signs)
            and not _LINE_OF_SIGNS.fullmatch(title)
        ):
            return title, text
    return "", text


def plain(text: str) -> Document:
    """Plain text has no headings: its title is an underlined line, or a short first line that stands alone."""
    title, _ = restructured(text)
    lines = text.strip().splitlines()
    if not title and len(lines) > 2 and not lines[1].strip() and len(lines[0]) <= 100 and lines[0][-1] not in ".,;:!?":
        title = lines[0]
    return title, text


# ---- HTML ------------------------------------------------------------------------------------------------------------

_MAX_TAG_CHARS = 500
_TAG = re.compile(r"""</?([a-zA-Z][a-zA-Z0-9]*+)(?>(?:[^<>"']|"[^"]*"|'[^']*')*)>""")
_ANY_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*+)[^<>]*+>")
"""For a tag with an open quote or a picture in it; stops at the next `<`, so that all of them together read a text once."""
_DECLARATION = re.compile(r"<[!?][^<>]*+>")
_LONG_NUMBER = re.compile(r"&#[xX]?[0-9a-fA-F]{9,}+;?")
"""No character has such a number, and Python refuses to read one of thousands of digits."""
_UNSEEN = ("script", "style", "template", "noscript", "svg", "nav")
_END = {name: re.compile(rf"</{name}\b[^<>]*+>?", re.IGNORECASE) for name in (*_UNSEEN, "title")}
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|br|caption|d[dlt]|details|div|fieldset|figcaption|figure|footer|form|h[1-6r]|head|"
    "header|html|legend|li|main|ol|option|p|pre|section|summary|table|tbody|tfoot|thead|tr|ul"
)
_CELLS = ("td", "th")


def html_document(source: str) -> Document:
    """The title (or first h1) and the text a reader sees, one line for each block.

    By hand: the standard library's parser looks for the end of an open comment or script anew from each beginning, and a
    few megabytes of those would keep it busy for hours.
    """
    parts: list[str] = []
    title = heading = ""
    heading_at: int | None = None
    never_end: set[str] = set()
    at = 0
    while (start := source.find("<", at)) >= 0:
        parts.append(_unescaped(source[at:start]))
        if source.startswith("<!--", start) and "!" not in never_end:
            end = source.find("-->", start + 4)
            if end >= 0:
                at = end + 3
                continue
            never_end.add("!")
        tag = _TAG.match(source, start, start + _MAX_TAG_CHARS) or _ANY_TAG.match(source, start)
        if tag is None:
            declaration = _DECLARATION.match(source, start)
            at = declaration.end() if declaration else start + 1
            if declaration is None:
                parts.append("<")
            continue
        at, name, opens = tag.end(), tag[1].lower(), source[start + 1] != "/"
        if opens and name in _END and name not in never_end:
            end_tag = _END[name].search(source, at)
            if end_tag is None:
                never_end.add(name)
                if name in ("script", "style"):  # what a browser does: the rest is program
                    at = len(source)
            else:
                if name == "title" and not title:
                    title = " ".join(_unescaped(source[at : end_tag.start()]).split())
                at = end_tag.end()
        elif name in _CELLS:
            parts.append(" ")
        elif _BLOCKS.fullmatch(name):
            if name == "h1" and not heading:
                if opens:
                    heading_at = len(parts)
                elif heading_at is not None:
                    heading = " ".join("".join(parts[heading_at:]).split())
            parts.append("\n")
    parts.append(_unescaped(source[at:]))
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    return title or heading, "\n".join(line for line in lines if line)


def _unescaped(text: str) -> str:
    """Entities as characters; a line break in the source is a space."""
    if "&" in text:
        text = whole(html.unescape(_LONG_NUMBER.sub("\ufffd", text)))
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text


_CHARSET = re.compile(
    rb"""<meta\b[^<>]*?charset\s*=\s*["']?(iso-8859-\d{1,2}|windows-125\d|shift_jis|euc-jp|euc-kr|gb2312|gbk|gb18030|big5|koi8-[ru])\b""",
    re.IGNORECASE,
)
"""The encodings that old pages say they have. Not any that Python knows: some of those take quadratic time."""
_SERVED = frozenset(
    {
        *(f"iso8859-{number}" for number in (*range(1, 12), *range(13, 17))),
        *(f"cp125{number}" for number in range(9)),
        *("shift_jis", "cp932", "euc_jp", "euc_kr", "cp949", "gb2312", "gbk", "gb18030", "big5", "koi8-r", "koi8-u"),
        *("utf-16", "utf-16-le", "utf-16-be"),
    }
)
"""The same by Python's names, and what a server may say besides."""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def served_text(data: bytes, charset: str) -> str:
    """The text that a web server sent. What it says of the encoding (`charset`, which may be empty) and what the page says
    are often wrong, so valid UTF-8 is taken for that: nothing else looks like it by chance. Never fails."""
    for mark, codec in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(codec, "replace")
    said = _known_codec(charset)
    if not said.startswith("utf-16"):
        with suppress(UnicodeDecodeError):
            return data.decode("utf-8")
    if not said and (in_page := _CHARSET.search(data[:2048])):
        said = _known_codec(in_page[1].decode("ascii"))
    if said:
        return data.decode(said, "replace")
    text = data.decode("utf-8", "replace")  # a foreign byte or two do not make it another encoding
    num_foreign = len(text) - len(text.encode("ascii", "ignore"))
    return text if 2 * text.count("\ufffd") <= num_foreign else data.decode("cp1252", "replace")


def _known_codec(charset: str) -> str:
    """Python's name of one of `_SERVED`; empty for all others."""
    try:
        name = codecs.lookup(charset.strip()).name
    except (LookupError, ValueError):
        return ""
    return {"iso8859-1": "cp1252"}.get(name, name) if name in _SERVED else ""  # as all browsers take it


def _html_source(data: bytes, path: Path) -> str | DataError:
    charset = _CHARSET.search(data[:2048])
    if charset is None:
        return decoded(data, path, None)
    return data.decode(charset[1].decode("ascii"), "replace")


# ---- any of them -----------------------------------------------------------------------------------------------------

_TEXTS: dict[str, Callable[[str], Document]] = {
    ".txt": plain,
    ".md": markdown,
    ".markdown": markdown,
    ".rst": restructured,
    ".html": html_document,
    ".htm": html_document,
}
_OFFICE = {".pdf": pdf_document, ".docx": word_document, ".pptx": slides_document}
DOCUMENTS = (*_TEXTS, *_OFFICE)
"""What the name of a document may end in."""


def read_document(path: Path, name: str) -> Passage | None:
    """A file as one passage with the id `name`, which is also its metadata's `source`. None if it is empty."""
    kind, name = path.suffix.lower(), whole_name(name)
    beside: Metadata = {}
    page_starts: tuple[int, ...] = ()
    with open_bytes(path) as file:
        data = file.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise DataError(str(path), None, f"the file has over {MAX_LINE_BYTES >> 20} MiB, the limit of a document")
    if not data.strip():
        return None
    if kind in _OFFICE:
        title, text, page_starts = _OFFICE[kind](data, str(path))
    else:
        data = data.removeprefix(b"\xef\xbb\xbf")
        source = _html_source(data, path) if _TEXTS[kind] is html_document else decoded(data, path, None)
        if isinstance(source, DataError):
            raise source
        if "\x00" in source[:_MAX_TAG_CHARS]:
            order = "BE" if source.index("\x00") % 2 == 0 else "LE"  # the NUL of an ASCII letter comes first, or last
            hint = f"if it is UTF-16, convert it with: iconv -f UTF-16{order} -t UTF-8 FILE"
            raise DataError(str(path), None, f"is not text (found a NUL character); {hint}")
        source = source.replace("\r\n", "\n").replace("\r", "\n")  # whoever wrote it, it is the same document
        title, text = _TEXTS[kind](source)
        if _TEXTS[kind] is markdown:
            _, beside, _ = _front_matter(source)
    if not text.strip():
        return None
    title = title.strip()[:MAX_TITLE_CHARS].rstrip() or whole_name(path.stem)
    text = text.strip()
    begins = 0 if page_starts else _heading_ends(text, title)  # of a PDF the title may be how its first sentence begins
    return PagedPassage(
        name,
        title,
        text[begins:],
        metadata=bounded({**beside, "source": name}),
        page_starts=page_starts,
        are_slides=kind == ".pptx",
    )


_LINE_WITH_TEXT = re.compile(r"\S[^\n]*+")


def _heading_ends(text: str, title: str) -> int:
    """Where a text goes on that begins with its title: who is shown a passage is shown that before it."""
    lines = list(itertools.islice(_LINE_WITH_TEXT.finditer(text), 4))
    if lines and _is_drawn(lines[0][0]):  # over the title, too
        del lines[0]
    if len(lines) > 1 and _is_drawn(lines[1][0]):
        del lines[1]
    if len(lines) < 2:
        return 0
    heading = _HEADING.match(lines[0][0])
    words = _plain_words(_without_closing_signs(heading[1])) if heading else " ".join(lines[0][0].split())
    return lines[1].start() if words == title else 0


def _is_drawn(line: str) -> bool:
    return bool(_UNDERLINE.fullmatch(line) or _LINE_OF_SIGNS.fullmatch(line.rstrip()))
