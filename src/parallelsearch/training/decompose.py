"""Reading a question for the cold start: which things it names, what it asks about them, and in which order to look.

Rules over the words of an English question, no model. `compared` proposes the two things a comparison compares,
`aspect_of` says what is compared, `topic_words` gives the words worth adding to a name in a query. They only propose: the
cold start searches for each proposal and keeps what the search engine confirms. `rounds_of` orders a written
decomposition (steps that refer to earlier ones as `#1`) into rounds of independent sub-queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from parallelsearch.answers import normalise
from parallelsearch.errors import UsageError

Aspect = Literal["birth", "death", "age", "date", "count", "nationality", "country", "year", "same", "trait", "common"]
"""What a comparison is about. `trait` asks which one, or whether both, are something; `same` whether they share it;
`common` what they share."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a comparison asks: the aspect, which end of it wins (-1 the lower or earlier, 1 the higher or later, 0 none),
    whether the answer is yes or no, and whether yes means that the two differ."""

    aspect: Aspect
    direction: int = 0
    is_polar: bool = False
    differs: bool = False


# ---- words -----------------------------------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_QUESTION_WORDS = _words(
    "are is was were do does did have has had can could will would should which who whom whose what when where why "
    "how between in of from both being out among"
)
_LINKS = _words(
    "of the and in for de la le les el du des von van der den di da do dos y to on a an with from at by & vs vs. "
    "del al no und et ibn bin the's zu"
)
STOP = _words(
    "a an the and or of in on at by for from to with as is are was were be been being do does did have has had can "
    "could will would should which who whom whose what when where why how that this these those it its his her "
    "their them they he she there than then also both either neither each other two between among out one ones same "
    "different more most less least fewer first second last earlier later latest earliest older younger oldest "
    "youngest newer longer larger bigger higher greater further closer farther smaller shorter taller highest "
    "largest longest better following any not no yes whether share shared mutual common considered known called "
    "named type kind types kinds sort however while if so used such about currently still only into over under "
    "after before during more-than up s"
)
_TOKEN = re.compile(r"\"[^\"]+\"|“[^”]+”|[^\s]+")
_EDGE = " \t,;:?!.'\"“”‘’()[]"


def content_words(text: str) -> list[str]:
    """The words that carry meaning, normalised, in order."""
    return [word for word in normalise(text).split() if word not in STOP]


# ---- names -----------------------------------------------------------------------------------------------------------


def base_title(title: str) -> str:
    """A page's title without the part in brackets that tells it from others."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", title).strip() or title


def same_name(mention: str, title: str) -> bool:
    """The words of a question can mean the page: equal but for brackets, articles and case, or all words of one are in
    the other and they are at least two."""
    said, called = normalise(mention), normalise(base_title(title))
    if not said or not called:
        return False
    if said == called or said == normalise(title):
        return True
    short, long = sorted((said.split(), called.split()), key=len)
    return len(short) >= 2 and set(short) <= set(long) and len(long) <= len(short) + 2


def mention_of(title: str, question: str) -> str | None:
    """The stretch of the question that names the page, as it is written there; None if there is none."""
    wanted = normalise(base_title(title)).split()
    words = [(match[0], match.start(), match.end()) for match in re.finditer(r"[^\s]+", question)]
    if not wanted or not words:
        return None
    best: tuple[int, int, int] | None = None
    for length in range(1, min(len(wanted) + 3, len(words)) + 1):
        for start in range(len(words) - length + 1):
            begin, end = words[start][1], words[start + length - 1][2]
            said = normalise(question[begin:end]).split()
            if said == wanted:
                if start and words[start - 1][0] in ("The", "A", "An"):
                    begin = words[start - 1][1]
                return _trim(question[begin:end])
            if (
                len(said) >= 2
                and said[0] in wanted
                and said[-1] in wanted
                and (set(said) <= set(wanted) or set(wanted) <= set(said))
                and (best is None or len(said) > best[0])
            ):
                best = (len(said), begin, end)
    return _trim(question[best[1] : best[2]]) if best is not None else None


def _trim(text: str) -> str:
    text = text.strip(_EDGE.replace("(", "").replace(")", ""))
    return text if text.count("(") == text.count(")") else text.strip("()")


def names_in(question: str) -> list[str]:
    """Stretches that look like names: quoted, or capitalised words with small linking words between them."""
    found: list[str] = []
    tokens = _tokens(question)
    position = 0
    while position < len(tokens):
        end = _name_end(tokens, position)
        if end > position:
            name = re.sub(r"['’]s$", "", _trim(" ".join(token for token, _ in tokens[position:end])))
            if name and (len(name) > 2 or name.isupper()) and name not in found:
                found.append(name)
            position = end
        else:
            position += 1
    return found


def _tokens(question: str) -> list[tuple[str, bool]]:
    """Words with whether each can be part of a name. The question's own first words never can."""
    tokens: list[tuple[str, bool]] = []
    for number, match in enumerate(_TOKEN.finditer(question)):
        word = match[0]
        bare = word.strip(_EDGE)
        is_name = bool(bare) and (word[0] in '"“' or bare[0].isupper() or bare[0].isdigit())
        if number == 0 and bare.lower() in _QUESTION_WORDS:
            is_name = False
        tokens.append((word, is_name))
    return tokens


def _name_end(tokens: Sequence[tuple[str, bool]], start: int) -> int:
    """One past the last word of the name that starts here; `start` itself if none does."""
    end = position = start
    while position < len(tokens):
        word, is_name = tokens[position]
        if is_name:
            position += 1
            end = position
            if word.rstrip("\"”'’")[-1:] in ",;:?" or (word[0] in '"“' and word[-1:] in '"”'):
                break
        elif position > start and word.lower() in _LINKS and word.lower() not in ("and", "from", "by", "at", "with"):
            position += 1
        else:
            break
    return end


def compared(question: str) -> Iterator[tuple[str, str]]:
    """Pairs of names that the question may compare, the likeliest first."""
    text = " ".join(question.split()).rstrip("?.!: ") + " ?"
    joints = [match for word in (" or ", " and ", " & ") for match in re.finditer(re.escape(word), text, re.IGNORECASE)]
    for joint in joints:
        lefts = list(_left_names(text[: joint.start()]))
        rights = list(_right_names(text[joint.end() :]))
        for left in lefts[:3]:
            for right in rights[:3]:
                if left and right and normalise(left) != normalise(right):
                    yield left, right


def _left_names(text: str) -> Iterator[str]:
    """Names that end where the text ends: quoted, capitalised as far back as it goes, or all after the last comma."""
    text = text.rstrip(" ,")
    if text.endswith(('"', "”")):
        quoted = re.search(r"[\"“]([^\"”“]+)[\"”]$", text)
        if quoted:
            yield quoted[1]
    tokens = _tokens(text)
    start = len(tokens)
    while start > 0:
        word, is_name = tokens[start - 1]
        if start < len(tokens) and word.rstrip("\"”'’")[-1:] in ",;:":
            break
        if not is_name and word.lower() not in _LINKS:
            break
        start -= 1
    while start < len(tokens) and not tokens[start][1]:
        start += 1
    if start < len(tokens):
        yield _trim(" ".join(token for token, _ in tokens[start:]))
    tail = _trim(re.split(r"[,:;]\s", text)[-1])
    if 0 < len(tail.split()) <= 6:
        yield tail
    if start < len(tokens):  # "Are the band Foo Bar": the last capitalised run alone
        run = start
        for number in range(len(tokens) - 1, start - 1, -1):
            if not tokens[number][1]:
                run = number + 1
                break
        if run != start and run < len(tokens):
            yield _trim(" ".join(token for token, _ in tokens[run:]))


def _right_names(text: str) -> Iterator[str]:
    """Names that begin where the text begins."""
    quoted = re.match(r"\s*[\"“]([^\"”“]+)[\"”]", text)
    if quoted:
        yield quoted[1]
    text = re.sub(r"^\s*(?:the|a|an|is|was)\s+(?=[A-Z0-9\"“])", "", text)
    tokens = [
        (word, is_name or (number == 0 and word[:1].isupper())) for number, (word, is_name) in enumerate(_tokens(text))
    ]
    end = _name_end(tokens, 0)
    if end:
        yield _trim(" ".join(token for token, _ in tokens[:end]))
    head = _trim(re.split(r"[,:;?]\s?", text)[0])
    if 0 < len(head.split()) <= 6:
        yield head
    first_run = 0
    while first_run < end and tokens[first_run][1]:
        first_run += 1
    if 0 < first_run < end:
        yield _trim(" ".join(token for token, _ in tokens[:first_run]))


# ---- what is asked ---------------------------------------------------------------------------------------------------

_POLAR = re.compile(
    r"^(?:are|is|was|were|do|does|did|have|has|had|can|could)\b|,\s*(?:are|is|were|was|do|did|have)\s+(?:they\s+)?both\b",
    re.I,
)
_LATER = re.compile(
    r"\b(?:younger|youngest|later|latest|last|more recent(?:ly)?|most recent(?:ly)?|newer|newest|second|after)\b", re.I
)
_FEWER = re.compile(r"\b(?:less|least|fewer|fewest|smaller|smallest|shorter|shortest|lower|lowest)\b", re.I)
_EVENT = (
    r"(?:born|birth|found(?:ed|ing)?|form(?:ed|ing)?|establish\w*|releas\w*|publish\w*|open\w*|start\w*|creat\w*|built|"
    r"build\w*|launch\w*|introduc\w*|debut\w*|made|produc\w*|written|premier\w*|air\w*|began|begin\w*|complet\w*|construct\w*|"
    r"invent\w*|develop\w*|organi[sz]ed|incorporated|came|come|came out|happen\w*|occur\w*|took place|take place|discover\w*|"
    r"recorded|issued|inaugurated|fought|die[ds]?|death|died|exist\w*|set up|around|active|appear\w*|printed|sold|designed)"
)
_FIRST = re.compile(
    rf"\b{_EVENT}\b[^?]*\b(?:first|earlier|earliest|later|latest|last|before|after|second|recently|more recent)\b"
    rf"|\b(?:first|earlier|earliest|later|latest|last|before|second|recently)\b[^?]*\b{_EVENT}\b|\bcame (?:out )?first\b"
    r"|\b(?:older|oldest|younger|newer|newest|longer established|longest|more recent)\b",
    re.I,
)
_COUNT = re.compile(
    r"\b(?:more|most|fewer|less|greater|greatest|higher|highest|larger|largest|bigger|taller|tallest|longer|smaller|shorter|fewest)\b",
    re.I,
)


def aspect_of(question: str) -> Ask:
    """What a comparison is about, by its words."""
    text = " ".join(question.split())
    low = text.lower()
    is_polar = bool(_POLAR.search(text)) and not re.search(r"\bor\b(?! not)", low)
    differs = bool(re.search(r"\bdifferent\b", low))
    if is_polar:
        if re.search(r"\bnationalit", low):
            return Ask("nationality", 0, True, differs)
        if re.search(
            r"\bsame (?:country|nation)\b|different (?:countr|nation)",
            low,
        ):
            return Ask("country", 0, True, differs)
        if re.search(r"\bsame year|\bdifferent years?\b", low):
            return Ask("year", 0, True, differs)
        if re.search(r"\bsame\b|\bdifferent\b", low):
            return Ask("same", 0, True, differs)
        return Ask("trait", 0, True, differs)
    is_choice = (
        " or " in low or re.match(r"^(?:in |out of |of |from )?(?:between|among|the two|these)", low) is not None
    )
    if re.search(
        r"\b(?:older|oldest|younger|youngest)\b|\bborn\b[^?]*\b(?:first|earlier|later|last|before|after|second)\b|\b(?:first|earlier|later)\b[^?]*\bborn\b|\bbirth\b",
        low,
    ):
        return Ask("birth", 1 if _LATER.search(text) else -1)
    if re.search(r"\b(?:died|die|death)\b", low) and _FIRST.search(text):
        return Ask("death", 1 if _LATER.search(text) else -1)
    if re.search(r"\blived? (?:longer|longest)|longer li[fv]e", low):
        return Ask("age", 1)
    if _FIRST.search(text) and is_choice and not re.search(r"\b(?:longest|longer)\b(?! established)", low):
        return Ask("date", 1 if _LATER.search(text) else -1)
    if _COUNT.search(text) and is_choice:
        return Ask("count", -1 if _FEWER.search(text) else 1)
    if is_choice:
        return Ask("trait")
    if re.search(r"\bnationalit", low):
        return Ask("nationality")
    return Ask("common")


_RELATION: dict[Aspect, str] = {
    "birth": "born",
    "death": "died",
    "age": "born died",
    "nationality": "nationality",
    "country": "country",
}


def topic_words(question: str, names: Sequence[str], max_words: int = 4) -> list[str]:
    """The words of the question that say what is asked, the names left out, as they are written there."""
    rest = question
    for name in sorted(names, key=len, reverse=True):
        rest = re.sub(re.escape(name), " , ", rest, flags=re.IGNORECASE)
    words: list[str] = []
    for word in rest.split():
        bare = word.strip(_EDGE)
        bare = re.sub(r"['’]s$", "", bare)
        if (
            bare
            and bare.lower() not in STOP
            and normalise(bare)
            and bare.lower() not in (seen.lower() for seen in words)
        ):
            words.append(bare)
    return words[:max_words]


def relation_words(question: str, names: Sequence[str], ask: Ask, max_words: int = 4) -> str:
    """What to add to a name so that the query asks for the thing compared."""
    fixed = _RELATION.get(ask.aspect)
    words = [
        word
        for word in topic_words(question, names, max_words)
        if word.lower() not in ("born", "nationality", "country")
    ]
    if ask.aspect in ("birth", "death", "age"):
        return " ".join([*words[:2], fixed or ""]).strip()
    if fixed is not None:
        return " ".join([*words[:2], fixed])
    return " ".join(words)


# ---- written decompositions ------------------------------------------------------------------------------------------

_REFERENCE = re.compile(r"#(\d+)")


def rounds_of(steps: Sequence[str]) -> list[list[int]]:
    """The steps of a decomposition as rounds of step numbers (from 0): a step comes in the round after the last one it
    refers to, so that steps of one round do not depend on each other."""
    depth: list[int] = []
    for number, step in enumerate(steps):
        needs = [int(reference) - 1 for reference in _REFERENCE.findall(step)]
        late = [need + 1 for need in needs if not 0 <= need < number]
        if late:
            raise UsageError(f"step {number + 1} ('{step}') refers to #{late[0]}, which is not a step before it")
        depth.append(1 + max((depth[need] for need in needs), default=-1))
    return [
        [number for number, level in enumerate(depth) if level == wanted]
        for wanted in range(max(depth, default=-1) + 1)
    ]


def fill_references(step: str, answers: Sequence[str]) -> str:
    """A step with each `#n` replaced by the answer of step n."""
    return _REFERENCE.sub(lambda match: answers[int(match[1]) - 1], step)
