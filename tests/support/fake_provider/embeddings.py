"""Embeddings of the fake provider: vectors that depend on their input alone."""

import base64
import json
import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

USUAL_DIMENSIONS = 8


def inputs_of(body: Mapping[str, Any]) -> Sequence[str | Sequence[int]]:
    """Return the texts and arrays of tokens of a request."""
    given = body["input"]
    is_one = isinstance(given, str) or (given and isinstance(given[0], int))
    return [given] if is_one else given


def counted(body: Mapping[str, Any]) -> int:
    """Return the number of tokens: those of arrays, and one for four characters of a text."""
    sizes = ((len(it) // 4 + 1 if isinstance(it, str) else len(it)) for it in inputs_of(body))
    return sum(sizes)


def vector_of(text: str | Sequence[int], dimensions: int) -> "array[float]":
    """Return the vector of an input."""
    seed = text if isinstance(text, str) else json.dumps(list(text))
    numbers = array("h", random.Random(seed).randbytes(2 * dimensions))
    return array("f", [number / 32_749 for number in numbers])


def reply(body: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Return the reply to a request."""
    dimensions = body.get("dimensions", USUAL_DIMENSIONS)
    data = []
    for index, text in enumerate(inputs_of(body)):
        vector = vector_of(text, dimensions)
        encoded: Any = vector.tolist()
        if body.get("encoding_format") == "base64":
            encoded = base64.b64encode(vector.tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": encoded})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}
