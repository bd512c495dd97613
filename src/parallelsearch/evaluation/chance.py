"""What a coin flip scores: know it before praising an exact match.

A question that opens with a verb is answered yes or no. One that offers alternatives ("..., A or B?", "which of A, B and C
...", "between A and B, who ...") is answered with one of them: names, or, where the wording leaves no doubt, words in lower
case ("..., iron or copper?"). Everything else has a chance of nothing. The guesser reads the question only
(`data/alternatives.py`); the golden answers decide what its guess is worth.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallelsearch.answers import normalise
from parallelsearch.data.alternatives import offered


def chance_em(question: str, golden_answers: Sequence[str]) -> float:
    """The exact match a blind guess expects."""
    options = {normalise(option) for option in offered(question)}
    golden = {normalise(answer) for answer in golden_answers}
    return len(options & golden) / len(options) if options else 0.0
