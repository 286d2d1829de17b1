"""Requests of later attempts are matched to the calls of earlier ones."""

from caseworker.features.external.recorded import RecordedCalls


def test_a_request_whose_call_was_interrupted_in_this_process_is_no_divergence() -> None:
    """It is made again once; a request that no attempt has made diverges."""
    calls, diverged = RecordedCalls([]), list[str]()

    def ask(digest: str) -> str:
        return calls.call_for(digest, diverged=lambda: diverged.append(digest)).key

    calls.opened(1, replays=True)
    assert ask("interrupted") == "interrupted-1"
    calls.call_for("unused").is_complete = True
    calls.opened(2, replays=True)

    assert ask("interrupted") == "interrupted-2"
    assert diverged == []
    ask("interrupted")
    ask("new")
    assert diverged == ["interrupted", "new"]
