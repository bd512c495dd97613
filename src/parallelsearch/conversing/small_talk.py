"""What is answered to a message that asks nothing: a greeting, thanks, a word of farewell, "help". English words."""

from __future__ import annotations

import re

from parallelsearch.answers import normalise

_GREETING = re.compile(
    r"(?:hello|hi|hey|howdy|greetings|good (?:morning|afternoon|evening|day))(?: (?:there|all|everyone|again|assistant))?"
    r"(?: how are (?:you|things)(?: doing)?(?: today)?)?|how are you(?: doing)?(?: today)?"
)
_THANKS = re.compile(
    r"(?:ok |okay |great |perfect )?(?:thanks|thank you|thx|cheers)(?: (?:so much|very much|lot|again))?"
    r"(?: for (?:(?:all|your|that|this|quick|these) ){0,2}"
    r"(?:help|assistance|support|answers?|reply|explanation|info|information|that|this|it|everything))?"
)
_FAREWELL = re.compile(r"(?:ok |okay )?(?:bye|goodbye|bye bye|see you(?: later| soon)?|good night)")
_ABOUT = re.compile(r"(?:who|what) are you|what (?:can|do) you do|help|what is this|test(?:ing)?|ping")
_WHAT_IT_DOES = (
    "Ask a question: it is split into its parts, all are looked up at once, and the answer comes with the passages it rests "
    "on."
)


def small_talk(message: str) -> str | None:
    """What is answered to a message that asks nothing; None if it asks something."""
    text = normalise(message) if len(message) <= 80 else ""
    if _GREETING.fullmatch(text):
        return f"Hello! {_WHAT_IT_DOES}"
    if _THANKS.fullmatch(text):
        return "You are welcome."
    if _FAREWELL.fullmatch(text):
        return "Goodbye!"
    return _WHAT_IT_DOES if _ABOUT.fullmatch(text) else None
