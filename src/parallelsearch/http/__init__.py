"""HTTP as the whole package does it: one pooled client, one way to repeat, one way to show an address."""

from parallelsearch.http.address import (
    checked_url,
    is_loopback,
    is_public,
    with_version,
    without_login,
    without_secrets,
)
from parallelsearch.http.client import (
    CONTACT_ENV,
    MAX_BODY_BYTES,
    HttpClient,
    Response,
    Stream,
    error_detail,
    get_now,
    told_contact,
)
from parallelsearch.http.credentials import Credentials, Secrets, Sent, cleaned
from parallelsearch.http.private import without_asked
from parallelsearch.http.retry import retry_after_s, retrying

__all__ = [
    "CONTACT_ENV",
    "MAX_BODY_BYTES",
    "Credentials",
    "HttpClient",
    "Response",
    "Secrets",
    "Sent",
    "Stream",
    "checked_url",
    "cleaned",
    "error_detail",
    "get_now",
    "is_loopback",
    "is_public",
    "retry_after_s",
    "retrying",
    "told_contact",
    "with_version",
    "without_asked",
    "without_login",
    "without_secrets",
]
