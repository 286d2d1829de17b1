"""The worker's side of ``environments.Worker``; standard library only, to run with any peer."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def answer(questions: Mapping[str, Callable[..., Any]]) -> None:
    """Answer questions from standard input, by name, until it is closed.

    Output of a peer goes to standard error, so that it is not read as an answer.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        result = questions[asked["question"]](**asked["arguments"])
        answers.write(json.dumps(result) + "\n")
        answers.flush()
