"""Training on one machine: cold start, GRPO and PPO. The rollout, rewards and masks are the core's; this only adapts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.training.recipe import Recipe as Recipe
    from parallelsearch.training.recipe import load_recipe as load_recipe
    from parallelsearch.training.start import start as start
    from parallelsearch.training.sweep import sweep as sweep
    from parallelsearch.training.verl.reward import step_means as step_means

export(
    __name__,
    {
        "recipe": ("Recipe", "load_recipe"),
        "start": ("start",),
        "sweep": ("sweep",),
        "verl.reward": ("step_means",),
    },
)
