"""What a page may say of somebody or something that belongs to its subject: a house's architect, the novel somebody wrote.

`described.py` writes such a sentence into a copy of a page, and asks for what is described so. As data: of what kinds of
things, how a page says it, and how a question puts it. A role's name is a fact of `wide.FACTS`.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallelsearch.data.alternatives import words_of

PERSON = "person"
"""In the place of a kind of thing: somebody who has a page."""
PEOPLE = ("anyone", "man", "woman")
KINDS_OF_THINGS: dict[str, frozenset[str]] = {
    "town": words_of("village town city municipality settlement locality"),
    "river": words_of("river"),
    "novel": words_of("novel book"),
    "film": words_of("film"),
    "album": words_of("album"),
    "song": words_of("song"),
    "band": words_of("band"),
    "club": words_of("club team"),
    "company": words_of("company airline manufacturer"),
    "school": words_of("school university college"),
}
"""What else than people may belong to a page's subject, by the words that pages have for it."""


@dataclass(frozen=True, slots=True)
class Role:
    """Somebody who belongs to a thing. `{x}` is the thing (`{own}`: with an apostrophe), `{y}` who it is."""

    fact: str
    heads: frozenset[str]
    said: tuple[str, ...]
    """How a page says it, where `{it}` is the thing by name or as "it"."""
    phrases: tuple[str, ...]
    """How a question describes who it is."""
    asks: tuple[str, ...]
    """How a question asks who it is."""
    told: str
    """What a page that tells it already would have, with capitals or without."""
    who: str = "anyone"
    """One of `PEOPLE`, or of `KINDS_OF_THINGS`."""


def _role(
    fact: str,
    heads: str,
    said: tuple[str, ...],
    verb: str,
    told: str,
    *,
    nouns: tuple[str, ...] = (),
    phrases: tuple[str, ...] = (),
    asks: tuple[str, ...] = (),
    who: str = "anyone",
) -> Role:
    """A role by its nouns ("architect", "designer") and the verb of what was done ("designed"), where there is one."""
    named = nouns or (fact,)
    person = {"man": "man", "woman": "woman"}.get(who, "person")
    some = [text for noun in named for text in (f"the {noun} of {{x}}", f"the {noun} of {{x}}", f"{{own}} {noun}")]
    questions = [f"who was the {noun} of {{x}}" for noun in named] + [f"who is {{own}} {noun}" for noun in named]
    if verb:
        some += [f"the {person} who {verb} {{x}}", f"whoever {verb} {{x}}"]
        questions += [f"who {verb} {{x}}", f"who {verb} {{x}}"]
    return Role(fact, words_of(heads), said, (*some, *phrases), (*questions, *asks), told, who)


_BUILT = "building house museum church castle hotel stadium theatre bridge mall arena hospital mansion temple library"
_WRITTEN = "novel book story novella play poem"
_FOUNDED = (
    "company club organization organisation school university college magazine newspaper brewery airline association"
)
_PLAYED = "song album single opera"
_SCREEN = "film movie documentary"
_PLACED = "village town city settlement municipality"
_NATURE = "river lake mountain island stream tributary bay"
_MADE = "car aircraft device engine console language algorithm instrument"
ROLES: tuple[Role, ...] = (
    _role(
        "architect",
        _BUILT,
        (
            "{it} was designed by {y}.",
            "The architect of {x} was {y}.",
            "The plans were drawn by {y}.",
            "{it} is a work of the architect {y}.",
        ),
        "designed",
        r"architect|design",
        nouns=("architect", "designer"),
    ),
    _role(
        "owner",
        f"{_BUILT} {_FOUNDED}",
        ("{it} is owned by {y}.", "{it} belongs to {y}.", "The owner of {x} is {y}."),
        "owns",
        r"\bown|belong",
    ),
    _role(
        "painter",
        "painting portrait",
        ("{it} was painted by {y}.", "The painter was {y}."),
        "painted",
        r"paint\w* by|by ",
    ),
    _role(
        "sculptor",
        "sculpture statue memorial monument",
        ("{it} was made by the sculptor {y}.", "{it} is a work of {y}."),
        "made",
        r"sculpt\w+ |\bby\b",
        nouns=("sculptor", "maker"),
    ),
    _role(
        "translator",
        _WRITTEN,
        ("{it} was translated into English by {y}.", "The translator was {y}."),
        "translated",
        r"translat",
        phrases=("the person who translated {x} into English",),
    ),
    _role(
        "illustrator",
        _WRITTEN,
        (
            "{it} was illustrated by {y}.",
            "The pictures in {x} are by {y}.",
        ),
        "illustrated",
        r"illustrat",
        phrases=("the artist who illustrated {x}",),
    ),
    _role(
        "producer",
        f"{_SCREEN} {_PLAYED}",
        ("{it} was produced by {y}.", "The producer was {y}."),
        "produced",
        r"produc",
    ),
    _role(
        "composer",
        f"{_SCREEN} play game opera song",
        ("The music was composed by {y}.", "{y} composed the music for {x}.", "The music of {x} is by {y}."),
        "",
        r"compos|music|written",
        nouns=("composer",),
        phrases=("the composer of the music for {x}", "the person who wrote the music for {x}"),
        asks=("who wrote the music for {x}", "who composed the music for {x}"),
    ),
    _role(
        "editor",
        f"{_SCREEN} magazine newspaper journal",
        ("{it} was edited by {y}.", "The editor was {y}."),
        "edited",
        r"\bedit",
    ),
    _role(
        "screenwriter",
        _SCREEN,
        ("The screenplay of {x} was written by {y}.", "{y} wrote the screenplay for {x}."),
        "",
        r"writ|screenplay|wrote",
        nouns=("screenwriter",),
        phrases=("the person who wrote the screenplay for {x}",),
        asks=("who wrote the screenplay for {x}",),
    ),
    _role(
        "star",
        _SCREEN,
        ("{it} stars {y}.", "The leading part is played by {y}."),
        "",
        r"\bstar|featur|role",
        nouns=("star",),
        phrases=("the person who stars in {x}", "the lead of {x}"),
        asks=("who stars in {x}", "who plays the lead in {x}"),
    ),
    _role(
        "founder",
        f"{_FOUNDED} festival band {_PLACED}",
        ("{it} was founded by {y}.", "The founder of {x} was {y}.", "{y} founded {x}."),
        "founded",
        r"found|establish|\bformed by|start|creat",
    ),
    _role(
        "president",
        _FOUNDED,
        ("The president of {x} is {y}.", "{it} is headed by {y}.", "{y} is president of {x}."),
        "heads",
        r"president|head(?:ed)? by|chair|director",
        nouns=("president", "head"),
    ),
    _role(
        "coach",
        "club team",
        ("The coach of {x} is {y}.", "{it} is coached by {y}.", "{y} coaches {x}."),
        "coaches",
        r"coach|manag|train",
    ),
    _role("captain", "club team ship", ("The captain of {x} is {y}.", "{y} is captain of {x}."), "", r"captain"),
    _role(
        "singer",
        "band duo",
        ("The lead singer of {x} is {y}.", "{y} sings in {x}."),
        "",
        r"\bsing|vocal",
        nouns=("singer", "lead singer"),
        phrases=("the person who sings in {x}",),
        asks=("who sings in {x}",),
    ),
    _role(
        "drummer",
        "band duo",
        ("The drummer of {x} is {y}.", "{y} plays the drums in {x}."),
        "",
        r"drum",
        phrases=("the person who plays the drums in {x}",),
        asks=("who plays the drums in {x}",),
    ),
    _role("mayor", _PLACED, ("The mayor of {x} is {y}.", "The mayor is {y}."), "", r"mayor"),
    _role(
        "discoverer",
        f"{_NATURE} species genus moth element compound",
        ("{it} was discovered by {y}.", "The discoverer of {x} was {y}.", "{y} discovered it."),
        "discovered",
        r"discover|described|found",
    ),
    _role(
        "namesake",
        f"{_NATURE} park airport street road highway school university bridge stadium",
        ("{it} is named after {y}.", "{it} was named in honour of {y}."),
        "",
        r"\bname[ds]?\b|honou?r",
        nouns=("namesake",),
        phrases=("the person whom {x} is named after", "the person {x} was named after"),
        asks=("who is {x} named after", "after whom was {x} named"),
    ),
    _role(
        "designer",
        _MADE,
        ("{it} was designed by {y}.", "The designer of {x} was {y}."),
        "designed",
        r"design|develop|creat|invent",
    ),
    _role(
        "inventor",
        _MADE,
        ("{it} was invented by {y}.", "The inventor of {x} was {y}.", "{y} invented it."),
        "invented",
        r"design|develop|creat|invent",
    ),
    _role(
        "creator",
        "character show sitcom series program",
        ("{it} was created by {y}.", "The creator of {x} is {y}."),
        "created",
        r"creat|develop|written",
    ),
    _role(
        "host",
        "show program festival tournament competition event",
        ("{it} is hosted by {y}.", "The host is {y}."),
        "hosts",
        r"\bhost|present",
    ),
    _role(
        "winner",
        "tournament competition award festival",
        ("The first winner of {x} was {y}.", "{it} was first won by {y}."),
        "",
        r"\bw[oi]n",
        nouns=("first winner",),
        phrases=("the person who first won {x}",),
        asks=("who first won {x}",),
    ),
    _role(
        "commander",
        "battle operation mission engagement",
        ("The commander was {y}.", "{it} was led by {y}."),
        "led",
        r"command|\bled\b|leader",
        nouns=("commander",),
    ),
    _role(
        "husband",
        PERSON,
        ("{x} was married to {y}.", "The husband of {x} was {y}.", "{x} married {y}."),
        "married",
        r"marri|husband|wife|spouse",
        who="man",
    ),
    _role(
        "wife",
        PERSON,
        ("{x} was married to {y}.", "The wife of {x} was {y}.", "{x} married {y}."),
        "married",
        r"marri|husband|wife|spouse",
        who="woman",
    ),
    _role(
        "father",
        PERSON,
        ("The father of {x} is {y}.", "{x} is a child of {y}."),
        "",
        r"\b(?:father|son|daughter|child|parents?)\b",
        who="man",
    ),
    _role(
        "mother",
        PERSON,
        ("The mother of {x} is {y}.", "{x} is a child of {y}."),
        "",
        r"\b(?:mother|son|daughter|child|parents?)\b",
        who="woman",
    ),
    _role(
        "brother",
        PERSON,
        ("The brother of {x} is {y}.", "{y} is a brother of {x}."),
        "",
        r"brother|sister|sibling",
        who="man",
    ),
    _role(
        "sister",
        PERSON,
        ("The sister of {x} is {y}.", "{y} is a sister of {x}."),
        "",
        r"brother|sister|sibling",
        who="woman",
    ),
    _role(
        "son",
        PERSON,
        ("The son of {x} is {y}.", "{x} is the parent of {y}."),
        "",
        r"\b(?:son|sons|daughters?|child\w*|parents?)\b",
        who="man",
    ),
    _role(
        "daughter",
        PERSON,
        ("The daughter of {x} is {y}.", "{x} is the parent of {y}."),
        "",
        r"\b(?:son|sons|daughters?|child\w*|parents?)\b",
        who="woman",
    ),
    _role(
        "teacher",
        PERSON,
        ("{x} was taught by {y}.", "The teacher of {x} was {y}.", "{x} was a student of {y}."),
        "taught",
        r"taught|teach|student|pupil|studied",
    ),
    _role(
        "biographer",
        PERSON,
        ("A biography of {x} was written by {y}.", "The biographer of {x} was {y}."),
        "",
        r"biograph",
        phrases=("the person who wrote a biography of {x}",),
        asks=("who wrote a biography of {x}",),
    ),
    _role("successor", PERSON, ("{x} was succeeded by {y}.", "The successor of {x} was {y}."), "succeeded", r"succe"),
    Role(
        "headquarters",
        words_of("company organization organisation airline brewery association newspaper magazine"),
        ("{it} has its headquarters in {y}.", "The headquarters of {x} are in {y}."),
        ("the town where {x} has its headquarters", "the place where {x} is based", "the headquarters of {x}"),
        ("where does {x} have its headquarters", "where are the headquarters of {x}", "where is {x} based"),
        r"headquarter|\bbased\b|locat",
        "town",
    ),
    Role(
        "setting",
        words_of(f"{_WRITTEN} {_SCREEN}"),
        ("{it} is set in {y}.", "The story takes place in {y}."),
        ("the town where {x} is set", "the place in which {x} is set", "the setting of {x}"),
        ("where is {x} set", "where does {x} take place"),
        r"\bset\b|takes? place|located",
        "town",
    ),
    Role(
        "venue",
        words_of("festival tournament competition event award"),
        ("{it} takes place in {y}.", "{it} is held in {y}."),
        ("the town where {x} is held", "the place where {x} takes place", "the venue of {x}"),
        ("where is {x} held", "where does {x} take place"),
        r"\bheld\b|takes? place|locat|\bin (?-i:[A-Z])",
        "town",
    ),
    Role(
        "grave",
        words_of(PERSON),
        ("{x} is buried in {y}.", "The grave of {x} is in {y}."),
        ("the town where {x} is buried", "the place where {x} lies buried"),
        ("where is {x} buried", "where is the grave of {x}"),
        r"buried|grave|burial",
        "town",
    ),
    Role(
        "novel",
        words_of(PERSON),
        ("{x} wrote the novel {y}.", "{x} is the author of {y}."),
        ("the novel that {x} wrote", "the book by {x}", "the novel written by {x}"),
        ("what novel did {x} write",),
        r"wrote|writ|novel|book|author",
        "novel",
    ),
    Role(
        "film",
        words_of(PERSON),
        ("{x} starred in the film {y}.", "{x} played the lead in {y}."),
        ("the film in which {x} starred", "the film {x} starred in", "the film with {x}"),
        ("in what film did {x} star",),
        r"film|star|movie|\bact",
        "film",
    ),
    Role(
        "album",
        words_of(PERSON),
        ("{x} produced the album {y}.", "{x} was the producer of {y}."),
        ("the album that {x} produced", "the album produced by {x}"),
        ("what album did {x} produce",),
        r"album|produc",
        "album",
    ),
    Role(
        "song",
        words_of(f"{PERSON} film"),
        ("The song {y} is about {x}.", "{x} is the subject of the song {y}."),
        ("the song about {x}", "the song that is about {x}"),
        ("what song is about {x}",),
        r"\bsong",
        "song",
    ),
    Role(
        "band",
        words_of(PERSON),
        ("{x} plays in the band {y}.", "{x} is a member of {y}."),
        ("the band in which {x} plays", "the band that {x} is a member of", "{own} band"),
        ("in what band does {x} play",),
        r"\bband|group|duo|member",
        "band",
    ),
    Role(
        "club",
        words_of(PERSON),
        ("{x} plays for {y}.", "{x} is under contract with {y}."),
        ("the club that {x} plays for", "the team {x} plays for", "{own} club"),
        ("for what club does {x} play",),
        r"play|club|team|contract",
        "club",
    ),
    Role(
        "company",
        words_of(PERSON),
        ("{x} founded the company {y}.", "{x} is the head of {y}."),
        ("the company that {x} founded", "{own} company", "the company headed by {x}"),
        ("what company did {x} found",),
        r"found|company|business",
        "company",
    ),
    Role(
        "school",
        words_of(PERSON),
        ("{x} studied at {y}.", "{x} is a graduate of {y}."),
        ("the school where {x} studied", "the school {x} went to", "the place where {x} studied"),
        ("where did {x} study",),
        r"stud|educat|graduat|school|universi|college|attend",
        "school",
    ),
    Role(
        "home",
        words_of(PERSON),
        ("{x} lives in {y}.", "{x} has a house in {y}."),
        ("the town where {x} lives", "the place where {x} has a house", "{own} home town"),
        ("where does {x} live",),
        r"\bliv|resid|\bhome",
        "town",
    ),
    Role(
        "river",
        words_of(f"{_PLACED} castle bridge"),
        ("{it} lies on the {y}.", "{it} stands on the bank of {y}."),
        ("the river on which {x} lies", "the river that {x} lies on"),
        ("on what river does {x} lie",),
        r"river|\bbank|lies on",
        "river",
    ),
)
