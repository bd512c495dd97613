"""The words for each fact that questions of several parts ask for: as a verb, an adjective, a noun, a question, a phrase.

`reworded.py` and `contrasts.py` word questions with them. The keys are those of `FACTS` in `wide.py` above this folder. The
evaluation set `wide-reworded` is worded with them too: to change one is to make another set.
"""

from __future__ import annotations

from parallelsearch.coldstart.english.wide import Form

DID: dict[str, tuple[str, ...]] = {
    "born": ("was born",),
    "died": ("died", "passed away"),
    "released": ("was released", "came out"),
    "published": ("was published", "came out"),
    "founded": ("was founded", "was established"),
    "formed": ("was formed", "got together"),
    "opened": ("was opened",),
    "built": ("was built",),
}
TO_BE = {"died": "to die", "released": "to come out", "published": "to come out"}
ADJECTIVES: dict[tuple[str, Form], tuple[str, str]] = {
    ("born", "first_of"): ("older", "oldest"),
    ("born", "last_of"): ("younger", "youngest"),
    ("population", "most_of"): ("more populous", "most populous"),
    ("population", "fewest_of"): ("less populous", "least populous"),
}
for _made in ("released", "published", "founded", "formed", "built"):
    ADJECTIVES[_made, "first_of"] = ("older", "oldest")
    ADJECTIVES[_made, "last_of"] = ("newer", "newest")
"""The adjective for two and for more, by what is compared."""
NOUNS: dict[str, tuple[tuple[str, str], ...]] = {
    "born": (("year of birth", "years of birth"), ("birth year", "birth years")),
    "died": (("year of death", "years of death"),),
    "released": (("year of release", "years of release"), ("release year", "release years")),
    "published": (("year of publication", "years of publication"), ("publication year", "publication years")),
    "founded": (("year of founding", "years of founding"), ("founding year", "founding years")),
    "formed": (("year of forming", "years of forming"),),
    "opened": (("year of opening", "years of opening"),),
    "built": (("year of building", "years of building"),),
    "nation": (("nationality", "nationalities"),),
    "country": (("country", "countries"),),
    "birthplace": (("birthplace", "birthplaces"), ("place of birth", "places of birth")),
    "family": (("family", "families"),),
    "director": (("director", "directors"),),
    "author": (("author", "authors"), ("writer", "writers")),
    "performer": (("performer", "performers"),),
    "population": (("population", "populations"),),
    "species": (("number of species", "numbers of species"),),
}
"""What a fact is called, of one thing and of several."""
ASKS: dict[str, tuple[str, ...]] = {
    "born": ("what year was {x} born", "in what year was {x} born"),
    "died": ("what year did {x} die", "in what year did {x} die"),
    "nation": ("what is the nationality of {x}", "what nationality is {x}"),
    "birthplace": ("where was {x} born", "what is the birthplace of {x}"),
    "released": ("what year did {x} come out", "what year was {x} released"),
    "published": ("what year did {x} come out", "what year was {x} published"),
    "founded": ("what year was {x} founded", "in what year was {x} established"),
    "formed": ("what year was {x} formed", "in what year did {x} get together"),
    "built": ("what year was {x} built", "in what year was {x} put up"),
    "country": ("which country is {x} in", "in what country does {x} lie"),
    "population": ("what is the population of {x}", "how many people are there in {x}"),
    "species": ("how many species are there in {x}", "how many species does {x} have"),
    "family": ("what family is {x} in", "which family does {x} belong to"),
    "director": ("who directed {x}", "who is the director of {x}"),
    "author": ("who wrote {x}", "who is the author of {x}"),
    "performer": ("who recorded {x}", "who is the performer of {x}"),
}
"""One fact of one thing as a question."""
PHRASES: dict[str, tuple[str, ...]] = {
    "born": ("the year in which {x} was born", "{own} year of birth", "the year that {x} was born in"),
    "died": ("the year in which {x} died", "{own} year of death", "the year that {x} died in"),
    "nation": ("the nationality of {x}", "{own} nationality", "the nationality that {x} has"),
    "birthplace": ("the place where {x} was born", "{own} birthplace"),
    "released": ("the year in which {x} came out", "{own} release year", "the year that {x} came out in"),
    "published": ("the year in which {x} was published", "{own} year of publication"),
    "founded": ("the year in which {x} was founded", "{own} founding year"),
    "formed": ("the year in which {x} was formed", "the year that {x} was formed in"),
    "built": ("the year in which {x} was built", "the year that {x} was built in"),
    "country": ("the country that {x} is in", "the country in which {x} lies", "the country of {x}"),
    "population": ("the population of {x}", "{own} population", "the number of people who live in {x}"),
    "species": ("the number of species in {x}", "the number of species that {x} has"),
    "family": ("the family of {x}", "the family that {x} belongs to"),
    "director": ("the director of {x}", "the person who directed {x}", "{own} director"),
    "author": ("the author of {x}", "the person who wrote {x}", "{own} author"),
    "performer": ("the performer of {x}", "the artist who recorded {x}"),
}
"""The same as a phrase; with a relative clause it looks like a chain and is none."""
ASIDES = {
    "born": "{who} was born in {value}",
    "died": "{who} died in {value}",
    "nation": "{who} is {value}",
    "birthplace": "{who} was born in {value}",
    "released": "{who} came out in {value}",
    "published": "{who} came out in {value}",
    "director": "{who} {value} directed",
    "author": "{who} {value} wrote",
    "family": "{who} is in the family {value}",
    "population": "{who} has {value} inhabitants",
}
"""What a clause behind a name may tell: something else than what is asked for."""
SAME_SORT = {"nation": {"birthplace"}, "birthplace": {"nation"}}
"""Facts that would nearly tell the one that is asked for."""
