"""A small world of painters that the cold start's tests search in, and what they do with it."""

from __future__ import annotations

from parallelsearch import grammar
from parallelsearch.coldstart.lesson import ColdStartSettings
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.limits import Limits
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory

PAGES = {
    "Ada Brenn": "Ada Brenn (born 4 May 1901 in Oslo) was a Norwegian painter. She taught Tom Hale at the Oslo academy.",
    "Carl Dorn": "Carl Dorn (12 June 1888 – 3 March 1950) was a German painter and printmaker.",
    "Tom Hale": "Tom Hale is a British sculptor. As a student he won the Lund Prize in 1962.",
    "Vera Lind": "Vera Lind (born 2 April 1933) is a Swedish painter.",
    "Nils Berg": "Nils Berg (born 9 July 1910) was a Norwegian painter.",
    "Oslo": "Oslo is the capital of Norway. Many painters lived there.",
    "Lund Prize": "The Lund Prize is an award for sculpture, founded in 1949.",
    "Blue Gate": "Blue Gate is a 1984 comedy film directed by Ira Moss.",
    "Iron Lake": "Iron Lake is a 1991 drama film directed by Ann Poe.",
    "Ira Moss": "Ira Moss (born 1950) is a Canadian film director.",
    "Ann Poe": "Ann Poe (born 1941) is an Irish film director.",
    "Kelp": "Kelp is a large brown seaweed. It grows in cold water along the coast of Norway.",
}
BIRTH = Question(
    "Which painter was born first, Ada Brenn or Carl Dorn?", ["Carl Dorn"], id="b1", kind="parallel",
    supporting_titles=["Ada Brenn", "Carl Dorn"],
)  # fmt: skip
CHAIN = Question(
    "Which prize did the student whom Ada Brenn taught at the Oslo academy win?", ["Lund Prize"], id="c1",
    kind="sequential", supporting_titles=["Ada Brenn", "Tom Hale"],
)  # fmt: skip
SINGLE = Question("what colour of seaweed is kelp", ["brown"], id="s1", kind="single")


def settings(mode: str = "parallel", **changes: object) -> ColdStartSettings:
    limits = Limits(max_observation_tokens=3000, max_tokens=8000, timeout_s=None)
    values: dict[str, object] = {"mode": mode, "limits": limits, "max_tokens": 8000, **changes}
    return ColdStartSettings(**values)  # type: ignore[arg-type]


async def taught(question: Question, search: Search, encoder: TokenizerEncoder, mode: str = "parallel") -> Trajectory:
    (trajectory,), report = await build_coldstart([question], search, encoder, settings(mode))
    assert report.to_dict()["num_kept"] == 1
    return trajectory


async def reason(question: Question, search: Search, encoder: TokenizerEncoder) -> str:
    made, report = await build_coldstart([question], search, encoder, settings())
    assert made == []
    return report.reasons[question.id]


def turns(trajectory: Trajectory) -> list[grammar.ParsedTurn]:
    parsed = [grammar.parse_turn(segment.text) for segment in trajectory.segments if segment.author == "model"]
    assert all(turn.is_valid for turn in parsed)
    return parsed
