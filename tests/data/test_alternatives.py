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
        # the list stands in a sentence of its own, opens its own, or is all commas, bars or bullets
        ("Compare Ansbach, Tambov and Bratsk. Which one has more inhabitants than all the others?", ["Ansbach", "Tambov", "Bratsk"]),
        ("Tristan Bernard, Neil Cross and Sian Law: which of them are bassists?", ["Tristan Bernard", "Neil Cross", "Sian Law"]),
        ("Could you look this up? Which of Oslo, Cairo and Quito is the largest?", ["Oslo", "Cairo", "Quito"]),
        ("Who was born first: Neil Bush, Luca Cordero or Sean O. Cota? Thanks!", ["Neil Bush", "Luca Cordero", "Sean O. Cota"]),
        ("cezanne, degas, renoir - who died first", ["cezanne", "degas", "renoir"]),
        ("Find the oldest of the three: Amy Dickinson | Myrna Sharlow | James Packer.", ["Amy Dickinson", "Myrna Sharlow", "James Packer"]),
        ("Which came out last, given this list?\n• Blue Gate\n• Iron Lake\n• Red Hill", ["Blue Gate", "Iron Lake", "Red Hill"]),
        # what it is, is no part of a name, and neither is what follows
        ("Which one has the fewest species, the genus Nicocles, the genus Gossypium or the genus Arabidopsis?", ["Nicocles", "Gossypium", "Arabidopsis"]),
        ("Which of the two films, The Devil Diamond or Sinner's Parade, had the director who died after the other?", ["The Devil Diamond", "Sinner's Parade"]),
        ("among světák bob, boulder dash and nba 2k1, which ones came out before 1990", ["světák bob", "boulder dash", "nba 2k1"]),
        ("The films Goin' to Town and Dog Days: do their directors have the same nationality?", ["yes", "no"]),
        ("Heather Hunt, Chou Chia-chi and Eddie Evans: not one of them Canadian, correct?", ["yes", "no"]),
        ("Which is native to Asia, Corokia or Rhodotypos?", ["Corokia", "Rhodotypos"]),
        # these offer nothing, or a yes and a no
        ("How many of Oslo, Cairo and Quito are in Africa?", []),
        ("In which years were Hot Peaches and Rylo founded?", []),
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
        ("Who was born after 1960, Terry Lovejoy or Max Linder?", ["Terry Lovejoy", "Max Linder"]),
        ("Who died before 1950, Max Planck, C. V. Raman or Lise Meitner?", ["Max Planck", "C. V. Raman", "Lise Meitner"]),
        ("Were Max Planck, C. V. Raman and Lise Meitner born before 1900?", ["Max Planck", "C. V. Raman", "Lise Meitner"]),
        ("Which is the longest film, 1917, Dunkirk or Fury?", ["1917", "Dunkirk", "Fury"]),
        ("Who is older, Claude Monet or Camille Pissarro?", ["Claude Monet", "Camille Pissarro"]),
        ("Did the author of Emma meet the painter Turner or Lord Byron?", ["Turner", "Lord Byron"]),
        ("Is Cairo in Africa?", []),
        ("How old was Claude Monet?", []),
        # What a thing is, what is asked of all, and where they are asked to be, are no part of a name.
        ("Are the skier Mia Zutter, Candy Bauer and the actor J. P. McGowan American?", ["Mia Zutter", "Candy Bauer", "J. P. McGowan"]),
        ("Take the directors of the films The Tender Years and Dog Days. Which film is older?", ["The Tender Years", "Dog Days"]),
        ("Which country is the birthplace of the directors of Det bästa med Robyn and Las aventuras de Pito?", ["Robyn", "Las aventuras de Pito"]),
        ("Were all of WCW vs. the World, St. Barnabas and Mr. Sampath released after 1990?", ["WCW vs. the World", "St. Barnabas", "Mr. Sampath"]),
        ("Are Mike Cross, Ed Oxenbould and Cliff Ellen Australian?", ["Mike Cross", "Ed Oxenbould", "Cliff Ellen"]),
        ("Did Sonia and Light Fury and Blue Gate and Iron Lake come out in 1999?", ["Sonia", "Light Fury", "Blue Gate", "Iron Lake"]),
        ("Which films are from Machete Kills or Mummy & Me?", ["Machete Kills", "Mummy & Me"]),
        ("Do Tolpis farinulosa and Barsine defecta belong to one family?", ["Tolpis farinulosa", "Barsine defecta"]),
        # In small letters, the words around a list tell where it begins and ends.
        ("is each of scott wasserman and paolo leon a musician?", ["scott wasserman", "paolo leon"]),
        ("was each of jab jab phool khile, shiv mahima and aas ka panchhi released before 2020", ["jab jab phool khile", "shiv mahima", "aas ka panchhi"]),
        ("did all of bob jauron, marietta alboni and antal ribáry die after 1990", ["bob jauron", "marietta alboni", "antal ribáry"]),
        ("is it true that none of gilbert taylor and andré turpin was born before 1870?", ["gilbert taylor", "andré turpin"]),
        ("how many of tambov, plzeň and maribor are in russia", ["tambov", "plzeň", "maribor"]),
        ("are jerome storm and andrés wood from the same country?", ["jerome storm", "andrés wood"]),
        ("were both peter duffell and fred niblo actors?", ["peter duffell", "fred niblo"]),
        ("look at crane world, hahdhu and manhattan angel. how many of these films are old?", ["crane world", "hahdhu", "manhattan angel"]),
        ("of the films suburbicon and machete kills, which one has the older director?", ["suburbicon", "machete kills"]),
        ("which programming language is older, rust or go?", ["rust", "go"]),
    ],
)  # fmt: skip
def test_names_in_a_row(question: str, names: list[str]) -> None:
    assert listed(question) == names
