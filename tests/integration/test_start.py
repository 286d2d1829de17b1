"""The modules that a service process imports at its start, and its garbage collection."""

import os
import subprocess
import sys
from pathlib import Path

LISTENING = """
import gc, os, signal, sys
from caseworker.cli import main, output
from caseworker.main.lifetime import GC_THRESHOLDS

def report(_: str) -> None:
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold() == GC_THRESHOLDS
    print(*sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)

output.out.print = report
main()
"""
UNUSED = {
    *("alembic", "caseworker_client", "dateparser", "jwt", "mako", "matplotlib", "mcp"),
    *("numpy", "psutil", "unittest"),
    *("anthropic", "cohere", "google", "groq", "mistralai", "openai", "pydantic_ai"),
    "caseworker.features.telemetry.span_export",
    "caseworker.models.wires.anthropic",
    "caseworker.platform.postgres.embedded",
    "opentelemetry.sdk",
}
MAX_MODULES = 1785
"""Maximum number of modules: each takes 0.7 ms of the start and 80 KB."""


def test_an_idle_process_holds_only_modules_that_it_uses(database_url: str, tmp_path: Path) -> None:
    """A process with a model of OpenAI imports neither SDKs nor optional parts."""
    model = {
        "MODELS_SMALL_PROVIDER": "openai",
        "MODELS_SMALL_MODEL": "gpt-5",
        "OPENAI_API_KEY": "x",
    }
    done = subprocess.run(
        [sys.executable, "-c", LISTENING, "serve"],
        cwd=tmp_path,
        env={**os.environ, **model, "DATABASE_URL": database_url, "SERVER_PORT": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    imported = {*done.stdout.splitlines()[-1].split()}

    assert "caseworker.models.wires.openai" in imported
    assert imported & UNUSED == set()
    assert len(imported) <= MAX_MODULES
