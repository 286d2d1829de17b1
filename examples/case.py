"""Run a case: a question that is answered with tools and verified."""

from local_service import connected

with connected() as client:
    run = client.run_case("What is 17% of 2,340?", budget={"max_tool_calls": 3}, wait_seconds=20)
    print(run.status, run.result.answer, "verified by", run.result.verification["confirmed_by"])
    print(client.explain_run(run.run_id).partition("\nWhere the time went")[0])
