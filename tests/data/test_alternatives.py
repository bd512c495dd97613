"""Questions that set things side by side: what they offer to choose from, and which names they may compare."""

from __future__ import annotations

import pytest

from parallelsearch.data.alternatives import compared, listed, offered


@pytest.mark.parametrize(
    ("question", "options"),
    [
        ("Are Lake Baikal and Lake Victoria both in Africa?", ["yes", "no"]),
        ("Which film came out first, Blind Shaft or The Mask Of Fu Manchu?", ["Blind Shaft", "The Mask Of Fu Manchu"]),
        ("Was Lupe Anguiano or Philippe Close born first?", ["Lupe Anguiano", "Philippe Close"]),
        (
            "Which film came out earlier, Murder, She Said or Story Of Barbara?",
            ["Murder, She Said", "Story Of Barbara"],
        ),
        ("Who directed Casablanca?", []),
        ("For bone growth, is kale better than spinach?", ["yes", "no"]),
        # names in lower case
        ("Which Debian package takes more space when installed, nasm or libqt6nfc6?", ["nasm", "libqt6nfc6"]),
        ("Do the Debian packages fcitx and webvtt belong to the same section?", ["yes", "no"]),
        ("Which animal is heavier, the blue whale or an elephant?", ["the blue whale", "an elephant"]),
        ("Which metal melts first: iron, platinum or gold?", ["iron", "platinum", "gold"]),
        ("Which of gold, silver and tin is the densest?", ["gold", "silver", "tin"]),
        ("In which film, shot in colour or in black and white, does he sing?", []),
        ("Which painter, who lived in Rome or painted there, was older?", []),
        ("Which rivers and lakes are there, or where can one swim?", []),
        # lists of several
        (
            "Which of the poets Lord Byron, Percy Shelley and John Keats died first?",
            ["Lord Byron", "Percy Shelley", "John Keats"],
        ),
        ("Of Verdi, Wagner and Bizet, who was born last?", ["Verdi", "Wagner", "Bizet"]),
        ("Which is the largest moon among Titan, Callisto and Ganymede?", ["Titan", "Callisto", "Ganymede"]),
        ("Who was the oldest of James Joyce and Franz Kafka?", ["James Joyce", "Franz Kafka"]),
        ("Which was launched first: Vostok 1, Apollo 8 or Sputnik 1?", ["Vostok 1", "Apollo 8", "Sputnik 1"]),
        (
            "Which is older: University of California, Berkeley or Yale?",
            ["University of California, Berkeley", "Yale"],
        ),
        # no comma before the last: people, and more than any name has commas
        ("Who was born first, Claude Monet, Camille Pissarro or Alfred Sisley?", ["Claude Monet", "Camille Pissarro", "Alfred Sisley"]),
        ("Who won the most medals, Ada, Bo, Cy or Di?", ["Ada", "Bo", "Cy", "Di"]),
        ("Who died first, Theophilus Clinton, 4Th Earl Of Lincoln or Max Linder?", ["Theophilus Clinton, 4Th Earl Of Lincoln", "Max Linder"]),
        ("Who was born last, Sammy Davis, Jr. or Dean Martin?", ["Sammy Davis, Jr.", "Dean Martin"]),
        ("Who was born first, Marc René, Marquis De Montalembert or Max Linder?", ["Marc René, Marquis De Montalembert", "Max Linder"]),
        ("Which band was formed first, NOFX, Unun, Deicide, Cream or Blur?", ["NOFX", "Unun", "Deicide", "Cream", "Blur"]),
        ('Which came out first, "Emma", "Persuasion" or "Sanditon"?', ["Emma", "Persuasion", "Sanditon"]),
        ("Which song is longer, “Help!”, “Hey, Jude”, or “Yesterday”?", ["Help!", "Hey, Jude", "Yesterday"]),
        ('Which film came out first, "Murder, She Said" or "Dance, Girl, Dance"?', ["Murder, She Said", "Dance, Girl, Dance"]),
        ("Which film came out first, Dance, Girl, Dance or Holiday?", ["Dance, Girl, Dance", "Holiday"]),
        ("Which city has the most inhabitants, Washington, D.C. or Paris?", ["Washington, D.C.", "Paris"]),
        # the verb comes after the names
        ("Which canal, Miami Canal or Dundee Canal, also supplies power?", ["Miami Canal", "Dundee Canal"]),
        ("Which band, Matthew Good Band or Switchfoot is still together?", ["Matthew Good Band", "Switchfoot"]),
        ("Between Parsifal and Saul og David which opera has more acts?", ["Parsifal", "Saul og David"]),
        ("In between The Bears and I and Oceans which came out in 1974?", ["The Bears and I", "Oceans"]),
        # these offer nothing, or a yes and a no
        ("Which river is the border between France and Germany near Strasbourg?", []),
        ("How far is it between Paris and London?", []),
        ("Are either The Pogues or Pillar an electronic group?", ["yes", "no"]),
        ("Both Sorbaria and Goldenrod are a genus of more than 50 plants?", ["yes", "no"]),
    ],
)  # fmt: skip
def test_what_a_guesser_sees(question: str, options: list[str]) -> None:
    assert offered(question) == options


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Which magazine was started first Arthur's Magazine or First for Women?", ("Arthur's Magazine", "First for Women")),
        ("Are Tamra Davis and Max Linder both directors?", ("Tamra Davis", "Max Linder")),
        ("Which was founded first, McCall's or Christianity Today?", ("McCall's", "Christianity Today")),
        ('Which is older, "Blue Gate" or "Iron Lake"?', ("Blue Gate", "Iron Lake")),
        ("What city is Oslo in?", None),
        ("With Iron Lake and Blue Gate in mind, how many came out after 2020?", ("Iron Lake", "Blue Gate")),
        ("Given Oslo and Bergen, which is larger?", ("Oslo", "Bergen")),
    ],
)  # fmt: skip
def test_the_names_of_a_comparison_are_proposed(question: str, names: tuple[str, str] | None) -> None:
    assert next(iter(compared(question)), None) == names


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Who died last, Akira Kurosawa, Satyajit Ray or Ingmar Bergman?", ["Akira Kurosawa", "Satyajit Ray", "Ingmar Bergman"]),
        ("Of Fritz Lang, Billy Wilder and Akira Kurosawa, who is Japanese?", ["Fritz Lang", "Billy Wilder", "Akira Kurosawa"]),
        ("How many of the Danube, the Rhine, and the Elbe reach Germany?", ["Danube", "Rhine", "Elbe"]),
        ("Are Oslo, Cairo and Quito in Africa?", ["Oslo", "Cairo", "Quito"]),
        ('Did "Blue Gate", "Iron Lake" and "Red Hill" come out in 1999?', ["Blue Gate", "Iron Lake", "Red Hill"]),
        ("Which of these were born after 1900: Max Planck, C. V. Raman or Lise Meitner?", ["Max Planck", "C. V. Raman", "Lise Meitner"]),
        ("Who was born after 1960, Terry Lovejoy or Max Linder?", []),
        ("Who died before 1950, Max Planck, C. V. Raman or Lise Meitner?", ["Max Planck", "C. V. Raman", "Lise Meitner"]),
        ("Were Max Planck, C. V. Raman and Lise Meitner born before 1900?", ["Max Planck", "C. V. Raman", "Lise Meitner"]),
        ("Which is the longest film, 1917, Dunkirk or Fury?", ["1917", "Dunkirk", "Fury"]),
        ("Who is older, Claude Monet or Camille Pissarro?", []),
        ("Did the author of Emma meet the painter Turner or Lord Byron?", []),
    ],
)  # fmt: skip
def test_names_in_a_row(question: str, names: list[str]) -> None:
    assert listed(question) == names
