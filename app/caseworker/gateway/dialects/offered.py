"""All APIs that the gateway offers."""

from typing import Final

from caseworker.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from caseworker.gateway.dialects.messages import MESSAGES
from caseworker.gateway.dialects.responses import RESPONSES

DIALECTS: Final = (CHAT_COMPLETIONS, RESPONSES, MESSAGES)
