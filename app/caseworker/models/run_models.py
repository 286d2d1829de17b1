"""The models that the client of a session may call, and the names by which it calls them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from caseworker.engine.context import FlowContext
from caseworker.models.gateway import ChatModel, ModelGateway
from caseworker.models.table import AllowedModels, ModelTable

ANY_NAME: Final = "*"


class UnknownModelError(LookupError):
    """The run may not call a model of this name, or it does not exist."""


class WrongDialectError(Exception):
    """The model has another API; ``provider`` is its provider type, such as ``anthropic``."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self.provider = provider


class RunModels:
    """The models of a run: those of the tenant, of the run's request and of its parent."""

    def __init__(
        self,
        table: Callable[[], ModelTable],
        allowed: Sequence[str] | Mapping[str, str] | None,
        parent: "RunModels | None" = None,
    ) -> None:
        """``table`` returns the models of the tenant.

        ``allowed`` are the configured names, or a map to them from the names that are sent.
        """
        self._table = table
        self._allowed = allowed
        self._parent = parent

    def model(self, name: str, provider: str) -> tuple[str, ChatModel]:
        """Return the configured name and the model for a name that the client sent.

        Raises:
            UnknownModelError: the run may not call a model of this name.
            WrongDialectError: the model has another API than those of this type of provider.
        """
        table, names = self._names()
        alias = names.get(name) or names.get(ANY_NAME)
        if alias is None:
            raise UnknownModelError(name)
        if not _has_api(table[alias], provider):
            raise WrongDialectError(table[alias].provider.name)
        return alias, table[alias]

    def names(self, provider: str) -> list[str]:
        """Return the names of models that the client may call with an API.

        Any other name is mapped to a configured one, which is listed too.
        """
        table, names = self._names()
        return [
            *dict.fromkeys(
                alias if name == ANY_NAME else name
                for name, alias in names.items()
                if _has_api(table[alias], provider)
            )
        ]

    def _names(self) -> tuple[ModelTable, Mapping[str, str]]:
        """Return the models of the tenant, and the configured name for each name to send."""
        table, allowed = self._table(), self._allowed
        if self._parent is not None:
            table = table.restricted(AllowedModels(tuple(self._parent._names()[1].values())))
        if isinstance(allowed, Mapping):
            return table, {name: alias for name, alias in allowed.items() if alias in table}
        aliases = [alias for alias in table if allowed is None or alias in allowed]
        by_model_name = {table[alias].model: alias for alias in reversed(aliases)}
        return table, {
            **dict.fromkeys(aliases, ""),
            **by_model_name,
            **{alias: alias for alias in aliases},
        }


def table_of(context: FlowContext) -> ModelTable:
    """Return the models that the tenant of a run may call."""
    allowed: AllowedModels | None = context.services.get(AllowedModels)
    return context.service(ModelGateway).table.restricted(allowed)


def _has_api(model: ChatModel, provider: str) -> bool:
    """Return whether a model can be called with the APIs of a type of provider."""
    return model.provider.name == provider and hasattr(model.provider, "relay")
