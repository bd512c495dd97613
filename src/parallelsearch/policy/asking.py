"""A policy is asked for a turn, and whatever goes wrong in it is told in one way.

A rollout asks so for its turns, its reader and its digests, and a judge for its verdicts. A failure of one call must cost no
more than the question it was for, also where the policy is the caller's own and raises what no policy should.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from parallelsearch.errors import ParallelSearchError, PolicyError
from parallelsearch.named import place_of
from parallelsearch.policy.base import Generation, Policy
from parallelsearch.trajectory import Segment

ODD_DATA = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What is raised where data from outside made no sense in a way that nobody thought of."""
BROKE = "the policy broke"
"""How the error of a call begins that raised what no policy should. In brackets follows the type, after a colon its words,
which a server keeps to itself."""
_log = logging.getLogger(__name__)


async def ask(
    policy: Policy,
    segments: Sequence[Segment],
    *,
    is_callers: Callable[[Exception], bool] = lambda _: False,
    **options: Any,
) -> Generation:
    """A turn. Whatever else a policy raises is a `PolicyError`, as whatever a backend raises is a `SearchError`; but what
    `is_callers` says is the caller's own mistake stays that. `options` are those of `Policy.generate`."""
    try:
        generation = await policy.generate(segments, **options)
    except ParallelSearchError:
        raise
    except Exception as error:
        if is_callers(error):
            raise
        place = "" if type(policy).__module__.startswith("parallelsearch.") else place_of(error)
        if isinstance(error, ODD_DATA):
            what = f"{policy.name} could not read its answer ({type(error).__name__}: {error}){place}"
        else:
            what = f"{BROKE} ({type(error).__name__}): {error}{place}"
        _log.debug("%s", what, exc_info=error)
        raise PolicyError(what) from error
    if not isinstance(generation, Generation):
        raise PolicyError(
            f"{BROKE}: {policy.name} gave a {type(generation).__name__} as its turn; generate gives a Generation, for "
            'example Generation(text, "stop")'
        )
    return generation
