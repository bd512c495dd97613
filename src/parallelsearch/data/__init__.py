"""Questions: files, named sets with their kinds, and what comes in the box."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.data.leaks import LeakError as LeakError
    from parallelsearch.data.leaks import refuse_leaks as refuse_leaks
    from parallelsearch.data.questions import demo_questions as demo_questions
    from parallelsearch.data.questions import read_questions as read_questions
    from parallelsearch.data.sets import QuestionSet as QuestionSet
    from parallelsearch.data.sets import known_names as known_names
    from parallelsearch.data.sets import load_questions as load_questions
    from parallelsearch.data.sets import training_pool as training_pool

export(
    __name__,
    {
        "questions": ("demo_questions", "read_questions"),
        "leaks": ("LeakError", "refuse_leaks"),
        "sets": ("QuestionSet", "known_names", "load_questions", "training_pool"),
    },
)
