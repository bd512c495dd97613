"""The cold start: trajectories with real searches, from which a policy learns its first turns, in any language.

`lesson` says what a lesson is, `tutor` plays it through the rollout, `written` teaches written decompositions,
`sampling` keeps a policy's own right tries, `pool` collects questions, `making` makes more of them from passages, `run`
goes from a `recipe` to files. What depends on a language is behind `rules`; `english` is the one that comes with the
package, found by name and imported by no one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.coldstart.recipe import ColdStartRecipe as ColdStartRecipe
    from parallelsearch.coldstart.recipe import load_coldstart_recipe as load_coldstart_recipe
    from parallelsearch.coldstart.run import run_coldstart as run_coldstart
    from parallelsearch.coldstart.sampling import sample_right as sample_right
    from parallelsearch.coldstart.tutor import build_coldstart as build_coldstart

export(
    __name__,
    {
        "recipe": ("ColdStartRecipe", "load_coldstart_recipe"),
        "run": ("run_coldstart",),
        "sampling": ("sample_right",),
        "tutor": ("build_coldstart",),
    },
)
