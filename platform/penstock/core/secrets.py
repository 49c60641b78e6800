"""Secrets: a holder that does not print itself, and the redaction of texts.

`redact` is applied before text of unknown origin is kept or sent: failures of tasks (`task.chain.failure`), tails of
logs (`taskmanager.worker_logs`), errors of REST and of the processes' own logs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache

REDACTED = "******"
#: Characters after a cut that are redacted with the text before it; more would cost time with a huge text.
_MARGIN = 1 << 16
#: Shorter values may be ordinary words, which would disappear from every text.
_LEAST_LENGTH = 6
_NAME = re.compile(
    r"(PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|PRIVATE_?KEY|ACCESS_?KEY|API_?KEY|CREDENTIAL)", re.IGNORECASE
)
#: The id of an access key names an account; Azure's access keys are secrets.
_IDENTIFIERS = re.compile(r"(ACCESS_?KEY_?ID|(S3|AWS|MINIO)_ACCESS_?KEY)$", re.IGNORECASE)
#: Variables with such a name hold a path or address, not a secret.
_PLACES = re.compile(r"(_FILE|_PATH|_DIR|_URL|_ENDPOINT)$", re.IGNORECASE)
#: None of them restarts within a run of letters: the time is linear in the text, for hostile text too.
_SHAPES = (
    # Authorization headers, also when quoted
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}"),
    # sasl.password=..., 'ssl.key.password': '...', secret_key = "..."
    re.compile(
        r"(?i)((?:password|passwd|passphrase|secret(?:[_.-]?key)?|(?<!s3[_.-])access[_.-]?key|api[_.-]?key)[\"']?\s*[=:]\s*)"
        # a value whose closing quote was cut goes to the end
        r"(?:\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z)|[^\s,;}&\"')]+)"
    ),
    # scheme://user:password@host
    re.compile(r"(://[^\s:/@]*:)[^\s/@]+(?=@)"),
)
_PEM = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{ENV:\w+")


class Secret:
    """A text that shows only by `reveal`; equal by identity, never printed, never pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        """Hold `value`; an empty secret is false."""
        self._value = value

    def reveal(self) -> str:
        """Return the text."""
        return self._value

    def __bool__(self) -> bool:
        """Return whether there is a value."""
        return bool(self._value)

    def __repr__(self) -> str:
        """Return a text without the value."""
        return f"Secret({REDACTED})" if self._value else "Secret()"

    def __reduce__(self) -> str:
        """Refuse: a pickled secret would travel with a job."""
        msg = "a secret cannot be pickled"
        raise TypeError(msg)


NO_SECRET = Secret()


class Redactor:
    """Replaces known secrets, and texts that look like secrets."""

    def __init__(self, values: frozenset[str] = frozenset()) -> None:
        """Redact `values` wherever they occur."""
        # The longest first: a secret may be the prefix of another.
        known = sorted((value for value in values if len(value) >= _LEAST_LENGTH), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        """Return `text` with secrets replaced."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        text = _PEM.sub(REDACTED, text)
        for shape in _SHAPES:
            text = shape.sub(_strike, text)
        return text


_remembered: set[str] = set()


def register_secret(value: str) -> None:
    """Redact `value` in every text of this process from now on."""
    _remembered.add(value)
    _of_this_process.cache_clear()


def redact(text: str) -> str:
    """Return `text` without secrets: those of the environment, remembered ones, and texts shaped like one."""
    return _of_this_process()(text)


def redacted(text: str, most: int, mark: str = "") -> str:
    """Return the first `most` characters of a text without secrets, and `mark` if it is longer.

    The text is redacted before it is cut, because a part of a secret would not be recognized.
    """
    found = redact(text[: most + _MARGIN])
    return found if len(found) <= most else f"{found[:most]}{mark}"


@lru_cache(maxsize=1)
def _of_this_process() -> Redactor:
    return Redactor(secret_values(os.environ) | _remembered)


def is_secret_name(name: str) -> bool:
    """Return whether the name of a column or variable marks its value as a secret; ids of access keys are none."""
    return bool(_NAME.search(name)) and not (_PLACES.search(name) or _IDENTIFIERS.search(name))


def _strike(match: re.Match[str]) -> str:
    """Keep the name of the secret; a reference (`${ENV:NAME}`) is not a secret."""
    return match[0] if _REFERENCE.search(match[0]) else f"{match[1]}{REDACTED}"


def secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the values of the variables whose names mark them as secrets."""
    return frozenset(value for name, value in environment.items() if is_secret_name(name) and value)
