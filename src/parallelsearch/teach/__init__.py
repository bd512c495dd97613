"""From a corpus to a policy for it: questions, trajectories, SFT, measured before and after, in one folder.

`run.py` is the order of the stages and what a killed run goes on from; `teacher.py` asks a model and never twice, `making.py`
has it write questions, `checking.py` decides which questions can be used, `planning.py` says beforehand what a run takes, and
`card.py` writes down what came out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.teach.planning import plan as plan
    from parallelsearch.teach.run import teach as teach
    from parallelsearch.teach.settings import TeachSettings as TeachSettings

export(__name__, {"planning": ("plan",), "run": ("teach",), "settings": ("TeachSettings",)})
