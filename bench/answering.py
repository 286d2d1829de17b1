"""The worker's end of ``environments.Worker``; standard library only, for it runs with any peer."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def answer(questions: Mapping[str, Callable[..., Any]]) -> None:
    """Answer questions from standard input, by name, until it is closed.

    What a peer prints goes to standard error, so that it cannot pass for an answer.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        result = questions[asked["question"]](**asked["arguments"])
        answers.write(json.dumps(result) + "\n")
        answers.flush()
