"""A job's policy as agents get it: encoded once, however many wait for it."""

from libra.balancer.policy import Policy, checksum_of, encode_policy


class ShownPolicy:
    """One policy with its body and ETag; the ETag is a checksum of the body.

    Attributes:
        etag: quoted, the first sixteen hex digits of the body's SHA-256.
    """

    __slots__ = ("body", "etag", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.body = encode_policy(policy)
        self.etag = f'"{checksum_of(self.body)}"'

    def is_known(self, if_none_match: str | None) -> bool:
        """Does the reader have it? ``if_none_match`` is the header, of one or several ETags."""
        if if_none_match is None:
            return False
        return any(
            tag.strip().removeprefix("W/") in (self.etag, "*") for tag in if_none_match.split(",")
        )
