"""The environment for verifiers where verifiers is not installed; `make test-verifiers` has the tests of the environment."""

import re
import subprocess
import sys

from parallelsearch.errors import install_command


def test_without_verifiers_it_says_what_to_type():
    code = "import sys; sys.modules['verifiers'] = None; import parallelsearch_env"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert re.search(r"MissingExtraError: .*'verifiers'", result.stderr)
    assert install_command("verifiers") in result.stderr
