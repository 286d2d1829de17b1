"""The first look: one case, posted to the service that has just started."""

from rich.console import Console
from rich.rule import Rule

from app.client import ApiError, CaseworkerClient, ServiceUnreachableError

QUESTION = "What is 17% of 2,340?"
WAIT_SECONDS = 20


async def show_demo(url: str, out: Console) -> None:
    """Post an example case over HTTP; print its answer, its trace and where to look."""
    try:
        async with CaseworkerClient(url) as client:
            run = await client.post_run({"input": QUESTION}, wait_seconds=WAIT_SECONDS)
            explained = await client.explain(run["run_id"])
    except (ApiError, ServiceUnreachableError) as error:
        out.print(f"The example case failed: {error}", markup=False)
        return
    result = run.get("result") or {}
    out.print(Rule("An example case", align="left"))
    out.print(f"question  {QUESTION}\nanswer    {result.get('answer')}", markup=False)
    out.print(Rule("Its trace", align="left"))
    out.print(explained, markup=False)
    out.print(Rule("Where to look", align="left"))
    for path in ("/docs", f"/runs/{run['run_id']}", f"/runs/{run['run_id']}/trace", "/readyz"):
        out.print(f"{url}{path}", markup=False)
    out.print("Ctrl+C ends the service.")
