"""Users' and tokens' secrets: nobody stores them, they are derived (decision 0071). Pure.

A *token* names an identity, as text::

    USER:GENERATION            a user's own secret; GENERATION is the index, in shard 0, of the request that made it
    USER:GENERATION:NUMBER     a delegation token; NUMBER is the index of the request that made it

A user's secret is HMAC-SHA256 of user and generation under a key that is derived from the cluster's secret. A
delegation token's secret is HMAC-SHA256 of its number under the secret of its owner. So whoever has the cluster's
secret knows them all, and who has a user's secret can derive those of the user's tokens: no secret travels.

Generation 0 is of two names without rows. Whoever has the cluster's secret is OPERATOR, an administrator. AUDITOR is
the running audit: it reads the rows of replicas and may do nothing else. No user can have that name.

Nothing here reveals a secret: no representation, no error, no pickle.
"""

from __future__ import annotations

import hmac
import re
from functools import lru_cache
from hashlib import sha256
from typing import NoReturn

from schemas.access.acl import name_fault
from schemas.privilege import ClusterSecret
from schemas.records.record import record

OPERATOR = "operator"
"""The user who has the cluster's secret. No user of this name can be created."""
AUDITOR = "_audit"
"""As whom the running audit reads: a name that no user can have."""
FILE_MARK = "stratolog-credentials-1"
"""The first word of a file of credentials."""
MAX_FILE_BYTES = 4096
SECRET_BYTES = 32
CLIENT_PREFIX_BYTES = 6
"""How many bytes of a client's id its user decides; the others are random."""
CLIENT_PREFIXES = 4096
"""Most users whose :func:`client_prefix` is remembered."""
MAX_NUMBER = 2**63 - 1
MAX_TOKEN_CHARACTERS = 112
"""Most characters of a token: a user's name, and two numbers of 19 digits."""

_TOKEN = re.compile(r"([^:]{1,64}):(0|[1-9][0-9]{0,18})(?::([1-9][0-9]{0,18}))?")


@record
class TokenName:
    """What a token names; ``number`` is 0 for a user's own secret."""

    user: str
    generation: int
    number: int

    @property
    def text(self) -> str:
        """The token."""
        return f"{self.user}:{self.generation}" + (f":{self.number}" if self.number else "")

    @property
    def newest(self) -> int:
        """The index in shard 0 from which on the token is known."""
        return max(self.generation, self.number)


def parse_token(text: str) -> TokenName:
    """Return what a token names; raises ValueError for anything that is none.

    >>> parse_token("alice:17").text, parse_token("alice:17:20").newest
    ('alice:17', 20)
    """
    found = _TOKEN.fullmatch(text)
    if found is None or (found[1] != AUDITOR and name_fault(found[1]) is not None):
        raise ValueError(f"{text[:MAX_TOKEN_CHARACTERS]!r} is no token: USER:GENERATION or USER:GENERATION:NUMBER")
    name = TokenName(user=found[1], generation=int(found[2]), number=int(found[3] or 0))
    if name.newest > MAX_NUMBER or (name.generation == 0) != (name.user in (OPERATOR, AUDITOR)):
        raise ValueError(f"{text!r} is no token: its generation cannot be {name.generation}")
    return name


class Credentials:
    """A token and its secret: what a client signs with. Raises ValueError for what is no token, or no secret."""

    __slots__ = ("_http", "_requests", "_secret", "name", "token")

    def __init__(self, token: str, secret: bytes) -> None:
        self.name = parse_token(token)
        self.token = token
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret of {token} has {SECRET_BYTES} bytes")
        self._secret = secret
        self._requests = hmac.digest(secret, b"stratolog requests", "sha256")
        self._http = hmac.digest(secret, b"stratolog http", "sha256")

    @property
    def user(self) -> str:
        """The user whose requests these are."""
        return self.name.user

    def request_mac(self, rest: bytes, value: bytes) -> bytes:
        """Return the signature of a record of requests, with what else is in its key."""
        return hmac.digest(self._requests, bytes((len(rest),)) + rest + value, "sha256")

    def http_mac(self, method: str, host: str, target: str, time_ms: int) -> bytes:
        """Return the signature of a call of HTTP."""
        text = f"{method.upper()}\0{host.lower()}\0{target}\0{time_ms}".encode(errors="surrogateescape")
        return hmac.digest(self._http, text, "sha256")

    def of_token(self, number: int) -> Credentials:
        """Return the credentials of the owner's delegation token of this number."""
        if self.name.number:
            raise ValueError("a delegation token has no tokens of its own")
        name = TokenName(user=self.name.user, generation=self.name.generation, number=number)
        return Credentials(name.text, hmac.digest(self._secret, b"stratolog token %d" % number, "sha256"))

    def text(self) -> str:
        """Return the contents of a file of credentials, the secret included; :func:`parse_credentials` reads it."""
        return f"{FILE_MARK} {self.token} {self._secret.hex()}\n"

    def __repr__(self) -> str:
        """Return a text without the secret."""
        return f"Credentials({self.token!r}, …)"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled."""
        raise TypeError("credentials are not pickled")


@lru_cache(maxsize=CLIENT_PREFIXES)
def client_prefix(user: str) -> bytes:
    """Return how the ids of a user's clients begin, so that nobody uses another user's id, and its call ids."""
    return sha256(b"stratolog client " + user.encode()).digest()[:CLIENT_PREFIX_BYTES]


def credentials_of(secret: ClusterSecret, name: TokenName) -> Credentials:
    """Return the credentials that a token has in a cluster."""
    own = TokenName(user=name.user, generation=name.generation, number=0)
    found = Credentials(own.text, secret.user_secret(own.text))
    return found.of_token(name.number) if name.number else found


def operator_credentials(secret: ClusterSecret) -> Credentials:
    """Return the credentials of whoever has the cluster's secret."""
    return credentials_of(secret, TokenName(user=OPERATOR, generation=0, number=0))


def auditor_credentials(secret: ClusterSecret) -> Credentials:
    """Return what the running audit signs its reads with."""
    return credentials_of(secret, TokenName(user=AUDITOR, generation=0, number=0))


def parse_credentials(text: str) -> Credentials:
    """Return the credentials of a file's contents; raises ValueError that does not repeat them."""
    words = text.split()
    if len(words) != 3 or words[0] != FILE_MARK:
        raise ValueError(f"a file of credentials is '{FILE_MARK} TOKEN SECRET'")
    try:
        secret = bytes.fromhex(words[2])
    except ValueError:
        raise ValueError("the secret in a file of credentials is hexadecimal") from None
    return Credentials(words[1], secret)
