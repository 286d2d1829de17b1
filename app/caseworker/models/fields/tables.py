"""The tables of all APIs of the gateway: the cost of each field of a request to a model."""

from collections.abc import Mapping
from typing import Final

from caseworker.models.fields.chat_completions import CHAT_COMPLETIONS
from caseworker.models.fields.embeddings import EMBEDDINGS
from caseworker.models.fields.messages import MESSAGES
from caseworker.models.fields.responses import RESPONSES
from caseworker.models.fields.table import Table

TABLES: Final[Mapping[str, Table]] = {
    each.dialect: each for each in (CHAT_COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES)
}
"""All tables by the name of their API."""
