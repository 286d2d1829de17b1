"""Authentication and authorization errors; no message repeats a credential."""


class AccessRefusedError(Exception):
    """The caller is not authenticated, or lacks the permission for this request."""


class CredentialRequiredError(AccessRefusedError):
    """The request carries no credential, and the service requires one."""


class InvalidCredentialError(AccessRefusedError):
    """The credential is unknown, expired or revoked; the message does not say which."""


class ScopeMissingError(AccessRefusedError):
    """The caller is authenticated but lacks the required scope."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"This operation requires the scope {scope}.")
        self.scope = scope


class OtherTenantError(AccessRefusedError):
    """The caller named another tenant, which only the operator of the service may do."""


class KeyNotFoundError(Exception):
    """The key does not exist or belongs to another tenant."""


class KeyConflictError(Exception):
    """The key is revoked, expired or already rotated, or the tenant has too many keys."""
