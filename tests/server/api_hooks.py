"""Loaded by schemathesis: what the agent's document asks of a conversation in words, since no schema can say it.

The last message of a valid request becomes a question that the test server's script knows. The rest stays as generated.
"""

import schemathesis
from agent_process import CAPITALS


@schemathesis.hook
def before_call(context, case, kwargs):
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    name = {"/v1/chat/completions": "messages", "/v1/responses": "input"}.get(case.path)
    if is_valid and name is not None and isinstance(case.body, dict):
        said = case.body[name]
        question = {"role": "user", "content": CAPITALS}
        case.body = {**case.body, name: CAPITALS if isinstance(said, str) else [*said[:-1], question]}
