"""Loaded by schemathesis: what the agent's document asks of a conversation in words, since no schema can say it.

The last message of a valid request becomes a question that the test server's script knows. The rest stays as generated.
"""

import schemathesis
from agent_process import CAPITALS


@schemathesis.hook
def before_call(context, case, kwargs):
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    if is_valid and case.path == "/v1/chat/completions" and isinstance(case.body, dict):
        earlier = case.body["messages"][:-1]
        case.body = {**case.body, "messages": [*earlier, {"role": "user", "content": CAPITALS}]}
