"""Actions in the viewer: runs, chats and schedules are started and changed in a browser."""

import re

import httpx
import pytest
from playwright.async_api import Browser, Locator, expect

from tests.viewer.reader import Reader
from tests.viewer.story import HOSTILE

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAIT_MS = 300_000


async def test_an_agent_is_run_once_with_its_inputs_and_limits(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """Errors of the service appear next to their fields, and a double click starts one run."""
    await reader.open("/ui/agents/teacher")
    await _button(reader, "Run…").click()
    dialog = reader.page.get_by_role("dialog")
    start, subject = dialog.get_by_role("button", name="Run"), dialog.get_by_label("subject")
    await start.click()
    await dialog.get_by_text("This input is required.").wait_for()
    await expect(subject).to_have_attribute("aria-invalid", "true")
    await expect(dialog).to_contain_text(HOSTILE)
    assert await reader.barriers() == []

    await subject.fill("sums")
    await dialog.get_by_label("Input").fill("Hello")
    await dialog.get_by_label("Cost (USD)").fill("-1")
    await start.click()
    await expect(dialog.get_by_label("Cost (USD)")).to_have_attribute("aria-invalid", "true")
    await dialog.get_by_label("Cost (USD)").fill("")
    await dialog.get_by_label("Model calls").fill("3")
    await start.dblclick()

    await expect(reader.page.locator(".page-head")).to_contain_text("completed", timeout=WAIT_MS)
    [run] = (await http.get("/runs", params={"agent": "teacher"})).json()["runs"]
    assert run["limits"]["max_llm_calls"] == 3
    whole = (await http.get(f"/runs/{run['run_id']}")).json()
    assert (whole["input"], whole["inputs"]["inputs"]) == ("Hello", {"subject": "sums"})
    assert await reader.page.evaluate("document.documentElement.dataset.owned") is None


async def test_a_graph_is_run_with_the_inputs_that_its_first_steps_read(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """Invalid JSON is rejected next to its field before anything is sent."""
    step = {"id": "add", "type": "tool"}
    data = {"tool": "calculator", "args": {"expression": "${default.left} + ${right}"}}
    graph = {"steps": [step | {"data": data}], "edges": []}
    await http.post("/graphs", json={"name": "adds", "graph": graph})
    await reader.open("/ui/graphs/adds")
    await _button(reader, "Run…").click()
    dialog = reader.page.get_by_role("dialog")
    await dialog.get_by_label("default").fill('{"left": ')
    await dialog.get_by_role("button", name="Run").click()
    await dialog.get_by_text("This is not valid JSON").wait_for()
    await dialog.get_by_label("default").fill('{"left": 1}')
    await dialog.get_by_label("right").fill("41")
    await dialog.get_by_role("button", name="Run").click()

    await expect(reader.page.locator(".page-head")).to_contain_text("completed", timeout=WAIT_MS)
    result = (await http.get(reader.page.url.rpartition("/ui")[2])).json()["result"]
    assert "42" in str(result["outputs"]["add"])


async def test_a_chat_streams_an_answer_survives_a_reload_and_is_stopped(reader: Reader) -> None:
    """The stopped answer keeps its text and is marked as incomplete."""
    await reader.open("/ui/threads")
    await _button(reader, "New chat…").click()
    dialog = reader.page.get_by_role("dialog")
    await dialog.get_by_label("Answered by").select_option("agents/tutor")
    await dialog.get_by_label("Title").fill("A story")
    await dialog.get_by_role("button", name="Start the chat").click()
    field, answer = _message(reader), reader.page.locator(".message-assistant")
    await expect(field).to_be_focused(timeout=WAIT_MS)
    await field.fill("Tell a story")
    await field.press("Shift+Enter")
    await reader.page.keyboard.type(HOSTILE)
    await field.press("Enter")
    await expect(answer).to_contain_text("Once upon", timeout=WAIT_MS)
    await expect(field).to_have_value("")

    await reader.page.reload()
    await expect(answer).to_contain_text("Once upon", timeout=WAIT_MS)
    await expect(reader.page.locator(".message-user")).to_contain_text(f"Tell a story\n{HOSTILE}")
    assert await reader.barriers() == []
    await _button(reader, "Stop").click()

    await expect(answer).to_contain_text("incomplete: stopped", timeout=WAIT_MS)
    await expect(answer).to_contain_text("Once upon")
    await expect(reader.page.locator("#announcer")).to_contain_text("Incomplete answer: Once")
    assert await reader.page.evaluate("document.documentElement.dataset.owned") is None


async def test_an_edit_and_a_retry_create_branches_of_a_chat(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """Escape leaves the message unchanged; the focus stays on the arrow that was used."""
    await http.post("/threads", json={"thread_id": "forks", "agent": {"name": "tutor"}})
    await reader.open("/ui/threads/forks")
    talk, keyboard = reader.page.locator(".conversation"), reader.page.keyboard
    await _message(reader).fill("First")
    await keyboard.press("Enter")
    await _button(reader, "Retry").wait_for()
    await _button(reader, "Edit").click()
    await keyboard.type("unsaved")
    await keyboard.press("Escape")
    await expect(_button(reader, "Edit")).to_be_focused()
    await _button(reader, "Edit").click()
    await reader.page.get_by_label("Edited message").fill("Second")
    await keyboard.press("Enter")
    await expect(talk).to_contain_text("2 of 2", timeout=WAIT_MS)
    await _button(reader, "Earlier wording").click()
    await expect(talk).to_contain_text("1 of 2", timeout=WAIT_MS)
    await expect(talk).to_contain_text("First")
    await expect(_button(reader, "Later wording")).to_be_focused()

    await _button(reader, "Retry").click()

    await expect(talk.get_by_role("group", name="2 answers")).to_contain_text("2 of 2")
    await expect(talk.get_by_title("Cost")).to_have_count(1, timeout=WAIT_MS)
    tree = (await http.get("/threads/forks/messages?tree=true")).json()["messages"]
    assert [one["role"] for one in tree] == ["user", "assistant"] * 2 + ["assistant"]


async def test_a_tool_call_is_refused_or_changed_in_the_chat_that_asks(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """The list of calls then shows the decision; the comment reaches the run."""
    await http.post("/threads", json={"thread_id": "asks", "agent": {"name": "careful"}})
    await reader.open("/ui/threads/asks")
    await _message(reader).fill("Add one and one")
    await _message(reader).press("Enter")
    question = reader.page.get_by_label("Approval of calculator")
    await expect(question.get_by_label("Arguments")).to_have_value(re.compile("1 . 1"))
    await question.get_by_label("Reason").fill("Not today")
    await question.get_by_role("button", name="Refuse").click()

    answer = reader.page.locator(".message-assistant .message-text")
    await expect(answer).to_have_text("It is two.", timeout=WAIT_MS)
    # The streamed answer is replaced by the stored one, whose list of calls is closed.
    await expect(_button(reader, "Retry")).to_be_visible(timeout=WAIT_MS)
    await reader.page.locator(".tool-calls summary").click()
    call = reader.page.locator(".tool-calls li").first
    await expect(call).to_contain_text("refused The approver refused it: Not today")
    [run] = (await http.get("/runs", params={"thread_id": "asks"})).json()["runs"]
    [asked] = (await http.get(f"/runs/{run['run_id']}/approvals")).json()["approvals"]
    assert (asked["decision"]["decision"], asked["decision"]["reason"]) == ("refused", "Not today")

    await _button(reader, "Retry").click()
    await question.get_by_label("Arguments").fill('{"expression": "2 + 2"}')
    await question.get_by_role("button", name="Approve").click()
    await expect(answer).to_have_text("It is two.", timeout=WAIT_MS)
    await expect(_button(reader, "Retry")).to_be_visible(timeout=WAIT_MS)
    await reader.page.locator(".tool-calls summary").click()
    await expect(call).to_contain_text('"2 + 2"} (changed by the approver) done')


async def test_a_schedule_is_created_paused_and_fired(
    reader: Reader, http: httpx.AsyncClient
) -> None:
    """Firing a paused schedule opens the page of its run."""
    await reader.open("/ui/schedules")
    await _button(reader, "New schedule…").click()
    dialog = reader.page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("weekly")
    await dialog.get_by_label("When").fill("weekly")
    zone = dialog.get_by_label("Time zone")
    await zone.fill("Mars")
    await dialog.get_by_label("What to run").select_option("agents/tutor")
    await dialog.get_by_label("Input").fill("Report")
    await dialog.get_by_role("button", name="Save").click()
    await dialog.get_by_text("This must be a cron expression").wait_for()
    await expect(zone).to_have_attribute("aria-invalid", "true")
    await zone.fill("UTC")
    await dialog.get_by_label("When").fill("0 6 * * 1")
    await dialog.get_by_role("button", name="Save").click()

    row = reader.page.get_by_role("row").filter(has_text="weekly")
    await row.get_by_role("button", name="Pause").click()
    await expect(row.get_by_role("button", name="Resume")).to_be_focused(timeout=WAIT_MS)
    await expect(row).to_contain_text("paused")
    assert (await http.get("/schedules/weekly")).json()["paused"]
    await row.get_by_role("button", name="Run now").click()

    await reader.page.get_by_role("link", name="tutor @1").wait_for()
    [run] = (await http.get("/runs?metadata.schedule=weekly")).json()["runs"]
    assert reader.page.url.endswith(f"/ui/runs/{run['run_id']}")


async def test_a_key_that_only_reads_sees_why_it_cannot_act(
    browser: Browser, http: httpx.AsyncClient
) -> None:
    """Actions are disabled or absent, with the missing scope."""
    await http.post("/threads", json={"thread_id": "quiet", "agent": {"name": "tutor"}})
    key = (await http.post("/keys", json={"name": "reader", "scopes": ["read"]})).json()["key"]
    lacking = "This key lacks the scope run."
    async with Reader.signed_in(browser, str(http.base_url), key=key) as reader:
        for path, label in (
            ("/ui/agents/tutor", "Run…"),
            ("/ui/threads", "New chat…"),
            ("/ui/schedules", "Run now"),
        ):
            await reader.open(path)
            await reader.page.get_by_text(lacking).wait_for()
            await expect(_button(reader, label).first).to_be_disabled()
        await reader.open("/ui/threads/quiet")
        await reader.page.get_by_text(lacking).wait_for()
        await expect(_message(reader)).to_have_count(0)
        await reader.open("/ui/runs/asking")
        await reader.page.get_by_text("This key lacks the scope approve.").wait_for()
        await expect(_button(reader, "Approve")).to_be_disabled()
        assert reader.complaints == []


def _button(reader: Reader, name: str) -> Locator:
    return reader.page.get_by_role("button", name=name)


def _message(reader: Reader) -> Locator:
    return reader.page.get_by_role("textbox", name="Message", exact=True)
