"""Who asks: a key, and headers of one's own, as the environment has them when a call is made.

An address stands in records, so it only names variables: `api_key_env` the one with the key, `headers_env` the one with
headers, written as lines `Name: value` or as a JSON object, or with `@FILE` for a file with them, which may be renewed while
a server runs. All are read for each call and kept nowhere. `Secrets` is what of them, quoted by a server, is told to nobody.
Which header carries a key, and when a call is made, is the caller's business.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, AnyStr, TypeVar

from parallelsearch.errors import ParallelSearchError, UsageError

Error = TypeVar("Error", bound=ParallelSearchError)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What the name of a header is made of (RFC 9110)."""
_OURS = {
    *(
        "host",
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    ),
    *("content-length", "content-type", "content-encoding", "accept-encoding", "proxy-authorization"),
}
"""They say where a request goes and how it is built, which the client alone knows."""
_HINTS = {
    "host": "the host is that of the address",
    "proxy-authorization": "user and password of a proxy stand in HTTPS_PROXY",
}
_IN_PLACE_OF_KEY = frozenset({"authorization", "api-key"})
_WRITTEN_OUT = re.compile(rf"\\n\s*{_TOKEN.pattern}\s*:")
_NAMES_A_KEY = re.compile(r"auth|key|token|secret|passw|cookie|credential|session|signature|jwt", re.I)
_LOOKS_LIKE_A_KEY = re.compile(
    r"(?=[\w.+/=~-]+\Z).*?(?:\b(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{16}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})",
    re.ASCII | re.I,
)
_LEAST_QUOTED = 4
"""Fewer letters are part of any sentence."""
SHORTEST_SECRET = 8
"""A shorter key is a word for servers that check none (`x`, `1`, `token`). Nobody takes such a word out of their answers: it
may be part of a text, of a number or of the name of a field."""


# ---- what is told to nobody ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Secrets:
    """What a call carried and a server may quote: `quoted` stands in no message, `answered`, which no text has by chance, in
    no answer either. The longest come first, so that none is left in part."""

    quoted: tuple[str, ...] = field(default=(), repr=False)
    answered: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, keys: Iterable[str], others: Iterable[str] = ()) -> Secrets:
        """`keys` are known to be some, of `others` a longer one may be."""
        keys, others = set(keys), set(others)
        quoted = {key for key in keys if len(key) >= _LEAST_QUOTED}
        quoted |= {text for text in others if len(text) >= SHORTEST_SECRET}
        answered = keys | {text for text in others if _LOOKS_LIKE_A_KEY.match(text)}
        return cls(
            tuple(sorted(quoted, key=_longest)),
            tuple(text.encode() for text in sorted(answered, key=_longest) if len(text) >= SHORTEST_SECRET),
        )

    def __or__(self, other: Secrets) -> Secrets:
        if not self.quoted or not other.quoted:
            return other if other.quoted else self
        return Secrets(
            tuple(sorted({*self.quoted, *other.quoted}, key=_longest)),
            tuple(sorted({*self.answered, *other.answered}, key=_longest)),
        )

    def out_of_message(self, text: str) -> str:
        return _without(text, self.quoted, "***")

    def out_of_refusal(self, body: bytes) -> bytes:
        """For an answer that is no more than a reason, of which messages quote the beginning."""
        return _without(body, (text.encode() for text in self.quoted if len(text) >= SHORTEST_SECRET), b"***")

    def out_of_answer(self, body: bytes) -> bytes:
        return _without(body, self.answered, b"***")

    def out_of_text(self, text: str) -> str:
        """As out of an answer, for what was put together of its pieces."""
        return _without(text, (secret.decode() for secret in self.answered), "***")

    def are_in(self, pieces: Iterable[bytes]) -> bool:
        return bool(self.answered) and any(secret in piece for piece in pieces for secret in self.answered)


def _longest(text: str | bytes) -> tuple[int, str | bytes]:
    return -len(text), text


def _without(text: AnyStr, secrets: Iterable[AnyStr], mark: AnyStr) -> AnyStr:
    for secret in secrets:
        text = text.replace(secret, mark)
    return text


def _secrets_in(own: Mapping[str, str]) -> Secrets:
    """Of headers: their values, and what stands in one behind the name of a scheme."""
    keys: set[str] = set()
    others: set[str] = set()
    for name, value in own.items():
        (keys if _NAMES_A_KEY.search(name) else others).update((value, *_told_in(value)))
    return Secrets.of(keys, others)


def _told_in(value: str) -> Iterator[str]:
    scheme, _, rest = value.partition(" ")
    if rest and scheme.lower() in ("bearer", "basic", "apikey", "token", "key"):
        yield rest.strip()
        if scheme.lower() == "basic":
            try:
                login = base64.b64decode(rest, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return
            yield login
            if len(password := login.partition(":")[2]) >= SHORTEST_SECRET:
                yield password


# ---- one call --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """What one call carries of who asks."""

    key: str | None = field(default=None, repr=False)
    """None also where a header of one's own takes its place."""
    key_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    own: Mapping[str, str] = field(default_factory=dict, repr=False)

    def secrets(self) -> Secrets:
        keys = Secrets.of([] if self.key is None else [self.key])
        return keys | _secrets_in(self.own) if self.own else keys

    @property
    def is_told(self) -> bool:
        """Whether it says who asks at all."""
        return self.key is not None or any(name.lower() in _IN_PLACE_OF_KEY for name in self.own)


def bearer(key: str) -> dict[str, str]:
    """The header that most servers want a key in."""
    return {"Authorization": f"Bearer {key}"}


class Credentials:
    """Where the environment says who asks. `carry` puts the key into headers."""

    def __init__(
        self,
        key_env: str | None = None,
        headers_env: str | None = None,
        carry: Callable[[str], Mapping[str, str]] = bearer,
    ) -> None:
        self.key_env, self.headers_env, self._carry = key_env or None, headers_env or None, carry

    def check(self) -> None:
        """Raise `UsageError` where the headers are not written as they should be. A key may still come."""
        if self.headers_env is not None:
            own_headers(self.headers_env)

    def read(self) -> Sent:
        """What the environment has now; `UsageError` for what cannot be sent."""
        own = {} if self.headers_env is None else own_headers(self.headers_env)
        key = "" if self.key_env is None else os.environ.get(self.key_env, "").strip()
        if not key:
            return Sent(own=own)
        if not (key.isascii() and key.isprintable()):  # the client would quote it in its own message
            raise UsageError(f"the key in the environment variable {self.key_env} has characters that no key has")
        carried = self._carry(key)
        given = {name.lower() for name in own}
        if given & (_IN_PLACE_OF_KEY | {name.lower() for name in carried}):
            return Sent(own=own)
        return Sent(key, carried, own)

    def clean(self, message: str) -> str:
        """The message without what the environment has now: a server may quote what it was sent."""
        try:
            return self.read().secrets().out_of_message(message)
        except UsageError:  # then nothing is sent
            return message

    def describe(self) -> dict[str, str]:
        """What a manifest has of it: the name of the variable, where headers are sent."""
        return {} if self.headers_env is None else {"headers_env": self.headers_env}

    def hint(self, sent: Sent) -> str:
        """What to do about a server that does not know who asks (401, 403)."""
        key_env = self.key_env or "a variable"
        if sent.own:
            beside = "" if sent.key is None else f" and the key in {key_env}"
            missing = "" if sent.is_told else f"; no key was sent beside them: set {key_env}"
            return f"It refused the headers in {self.headers_env}{beside}: set others{missing}"
        another = "or name another variable: ?api_key_env=NAME before the '#'"
        if sent.key is None:
            return f"No key was sent: set {key_env}, {another}. Where it wants other headers: ?headers_env=NAME"
        return f"It refused the key in {key_env}: set that to another, {another}"


def cleaned(error: Error, clean: Callable[[str], str]) -> Error:
    """An error that was made of what a server said, after that was cleaned."""
    error.args = (clean(str(error)), *error.args[1:])
    return error


# ---- headers of one's own --------------------------------------------------------------------------------------------


def own_headers(variable: str) -> dict[str, str]:
    """The headers in a variable of the environment. What cannot be sent is a `UsageError` that tells the line and the name of
    the header, and nothing else of it."""
    text = os.environ.get(variable, "").strip()
    source = f"the environment variable {variable} (headers_env)"
    if text.startswith("@"):
        source = f"the file that {variable} (headers_env) names"
        text = _of_file(text[1:].strip(), variable)
    if not text:
        missing = "holds no headers" if variable in os.environ else "is not set"
        raise UsageError(f"{source} {missing}: {how_written(variable)}")
    found: dict[str, str] = {}
    seen: set[str] = set()
    for where, name, value in _in_json(text, variable) if text[0] == "{" else _in_lines(text, variable):
        if not _TOKEN.fullmatch(name):
            raise UsageError(
                f"{variable}, {where}: it does not begin with the name of a header: {how_written(variable)}"
            )
        if name.lower() in _OURS:
            hint = f"; {_HINTS[name.lower()]}" if name.lower() in _HINTS else ""
            raise UsageError(f"{variable}, {where}: {name} is set by the client alone: leave it out{hint}")
        if name.lower() in seen:
            raise UsageError(f"{variable}, {where}: there is a header {name} already: write it once")
        if not value:
            raise UsageError(f"{variable}, {where}: {name} has no value: write one behind the colon, or leave it out")
        if not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"{variable}, {where}: the value of {name} has characters that no header has; printable ASCII is sent"
            )
        seen.add(name.lower())
        found[name] = value
    return found


def _of_file(path: str, variable: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{variable} names the file {path}, which cannot be read: {reason}") from None


def how_written(variable: str) -> str:
    """What to type for headers in a variable."""
    return (
        f"write export {variable}='Name: value', with a line for each header, or on one line as JSON, "
        f"""{variable}='{{"Name": "value", "Other": "value"}}'"""
    )


def _in_lines(text: str, variable: str) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"line {number}"
        name, colon, value = line.strip().partition(":")
        if not colon:
            raise UsageError(
                f"{variable}, {where}: there is no colon behind the name of the header: {how_written(variable)}"
            )
        if _WRITTEN_OUT.search(value):  # a file of variables may leave it as it is
            raise UsageError(
                rf"{variable}, {where}: there is \n in letters where a new line belongs: {how_written(variable)}"
            )
        yield where, name.rstrip(" \t"), value.strip(" \t")


def _in_json(text: str, variable: str) -> Iterator[tuple[str, str, str]]:
    try:
        pairs: Any = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        raise UsageError(f"{variable} begins with a brace and is no JSON object: {how_written(variable)}") from None
    for number, (name, value) in enumerate(pairs, start=1):
        if not isinstance(value, str):
            raise UsageError(f"{variable}, header {number}: its value is no text: {how_written(variable)}")
        yield f"header {number}", name, value.strip(" \t")
