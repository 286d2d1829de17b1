"""Connects the examples to a service.

If CASEWORKER_URL is set, they use that service. Otherwise each example starts its own service, with
a database in a temporary folder and without a model endpoint. The built-in planner plans cases, and
agents replay the recorded replies of a real model.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from caseworker_client import CaseworkerClient

HERE = Path(__file__).parent


@contextmanager
def connected(
    recording: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[CaseworkerClient]:
    """Yield a client; models replay ``recording``, and ``settings`` configure the service."""
    if url := os.environ.get("CASEWORKER_URL"):
        with CaseworkerClient(url) as client:
            yield client
        return
    variables = {"SERVER_PORT": "0", "LOGGING_LEVEL": "error", "MODELS_SMALL_PROVIDER": "offline"}
    if recording:
        variables["MODELS_SMALL_PROVIDER"] = "recorded"
        variables["MODELS_SMALL_RECORDING"] = str(HERE / "recordings" / recording)
        variables["MODELS_SMALL_MODEL"] = "qwen2.5-coder-1.5b-instruct-q4_k_m"
        variables["MODELS_SMALL_PRICE_PER_MILLION_IN_USD"] = "0"
        variables["MODELS_SMALL_PRICE_PER_MILLION_OUT_USD"] = "0"
    with tempfile.TemporaryDirectory(prefix="caseworker-example-") as folder:
        variables["DATABASE_DATA_DIR"] = folder
        service = subprocess.Popen(
            [sys.executable, "-m", "caseworker", "serve", "--migrate"],
            cwd=HERE.parent,
            env={**os.environ, **variables, **(settings or {})},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            with CaseworkerClient(_address(service)) as client:
                yield client
        finally:
            service.terminate()
            service.communicate()


def _address(service: subprocess.Popen[str]) -> str:
    for line in service.stdout or ():
        if found := re.search(r"listens on (\S+)", line):
            return found[1]
    raise SystemExit("The service has not started.")
