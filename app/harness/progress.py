"""Shows an evaluation while it works; says nothing where nobody watches."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.harness.evaluation import Progress as Told
from app.harness.results import Result


@contextmanager
def progress_bar(console: Console, total: int) -> Iterator[Told]:
    """Show how many trials have ended and how many of them failed, on a terminal alone."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    failed = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=total)

        def told(result: Result) -> None:
            nonlocal failed
            failed += not result.succeeded
            words = f"evaluating, {failed} failed" if failed else "evaluating"
            bar.update(task, advance=1, description=words)

        yield told
