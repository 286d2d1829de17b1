"""What keeps a caller out; no message repeats a credential."""


class AccessRefusedError(Exception):
    """The caller may not do this, or not any more."""


class CredentialRequiredError(AccessRefusedError):
    """There is no credential, and nobody is served without one."""


class InvalidCredentialError(AccessRefusedError):
    """A credential is not one of ours, has expired or was revoked; the text says nothing of it."""


class ScopeMissingError(AccessRefusedError):
    """The caller is known, and may not do this."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"This operation requires the scope {scope}.")
        self.scope = scope


class OtherTenantError(AccessRefusedError):
    """Only the operator of the service may act for a tenant other than its own."""


class KeyNotFoundError(Exception):
    """There is no such key, or it belongs to another tenant."""


class KeyConflictError(Exception):
    """The key has been revoked, has expired or was rotated already, or there are too many."""
