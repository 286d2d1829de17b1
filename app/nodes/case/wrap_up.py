"""The final answer of a case that is about to halt.

The answer of a case is composed from the evidence, and that needs no model: a case that halts with
a finding shows it. Only where tools have found something that is no answer by itself, such as rows
of data, is one more call of the small tier made, which puts it into words. Planning leaves
``wrap_up_reserve`` calls for it where using them up would halt the case.

The model may invent nothing: an answer with a number that neither the evidence nor the question
holds is discarded. Nothing is verified by it, and the case still halts.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from app.control.budget import Dimension
from app.control.usage import BudgetExceededError
from app.engine.call import CallFailedError
from app.llm.gateway import Completion, Tier
from app.nodes.case.prompt import wrap_up_prompt
from app.nodes.case.work import CaseWork, summary

MAX_ANSWER_CHARS = 2000

ANSWER_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {
        "answer": {"type": "string", "minLength": 1, "maxLength": MAX_ANSWER_CHARS},
        "cannot": {"type": "string", "minLength": 1},
    },
}

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*", re.ASCII)
_KEY = "wrap_up"


class WrapUp:
    """Puts what a case has found into words, once, where the evidence alone gives no answer."""

    def __init__(self, work: CaseWork) -> None:
        self._work = work

    async def run(self) -> None:
        """Ask the small tier for an answer, if one is missing and a call is left for it.

        A failure leaves the case as it was.

        Raises:
            Stop: a cancel request or the run's time ends it.
        """
        work = self._work
        if not work.wants_wrap_up or work.calls_left(Tier.SMALL) == 0:
            return
        try:
            completion = await work.ask(
                Tier.SMALL,
                name=_KEY,
                key=_KEY,
                messages=wrap_up_prompt(work.case, work.state.evidence),
                json_schema=ANSWER_SCHEMA,
            )
        except CallFailedError as failed:
            self._log("provider_error", error_class=failed.error_class, attempts=failed.attempts)
        except BudgetExceededError as refused:
            if refused.cause.dimension is Dimension.SECONDS:
                raise
            self._log("wrap_up_refused", reason=str(refused.cause.dimension))
        else:
            self._take(completion)

    def _take(self, completion: Completion) -> None:
        state = self._work.state
        answer = _answer_in(completion.text)
        if answer is not None and not self._is_grounded(answer):
            answer = None
            self._log("wrap_up_invented", model=completion.model)
        state.wrapped_up = answer
        self._log("wrap_up", model=completion.model, output_summary=summary(completion.text))

    def _is_grounded(self, answer: str) -> bool:
        """Return whether every number of an answer stands in the evidence or in the question."""
        work = self._work
        known = [work.case.question, *(json.dumps(dict(f.result)) for f in work.state.evidence)]
        numbers = {number for text in known for number in _numbers(text)}
        return _numbers(answer) <= numbers

    def _log(self, event: str, **details: Any) -> None:
        self._work.log.add("wrap_up", event=event, **details)


def _answer_in(reply: str) -> str | None:
    try:
        value = json.loads(reply)
    except (ValueError, RecursionError):
        return None
    answer = value.get("answer") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(answer, str) or not answer.strip() or len(answer) > MAX_ANSWER_CHARS:
        return None
    return answer if answer.isprintable() else None


def _numbers(text: str) -> set[str]:
    """Return the numbers in a text, without thousands separators and superfluous zeros."""
    found = (number.replace(",", "") for number in _NUMBER.findall(text))
    return {(n.rstrip("0").rstrip(".") if "." in n else n).lstrip("0") or "0" for n in found}
