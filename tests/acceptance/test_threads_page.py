"""The commands of docs/threads.md, against a service without any model."""

import json
import re
from pathlib import Path

import httpx
import pytest

from tests.support.service import ServiceProcess
from tests.support.threads import ThreadClient

PAGE = Path("docs/threads.md").read_text()


@pytest.mark.req("004/chat")
async def test_the_commands_of_the_page_work(database_url: str) -> None:
    """Each body as it stands there; the first question is answered with 42, the next with 48."""
    [commands] = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    first, *questions = [
        json.loads(body) for body in re.findall(r"-d '(.*?)'", commands, re.DOTALL)
    ]

    async with (
        ServiceProcess(database_url) as service,
        httpx.AsyncClient(base_url=service.url, timeout=150, trust_env=False) as http,
    ):
        thread = await ThreadClient.begin(http, **first)
        await thread.answer(**questions[0])
        _, seen = await thread.events(**questions[1])

        assert seen[-1]["type"] == "run.completed"
        assert await thread.said() == ["What is 6 * 7?", "42", "What is 6 * 8?", "48"]
