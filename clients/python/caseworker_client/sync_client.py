"""The synchronous client."""

import time
from collections.abc import Callable, Generator, Iterator
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

import httpx

from caseworker_client import catalog, events, quotas, runs, schedules, spend, threads, webhooks
from caseworker_client.catalog import AGENTS, GRAPHS
from caseworker_client.flow import Emit, Feed, Flow, Send, Sleep, Step
from caseworker_client.settings import RetryPolicy, Settings

P = ParamSpec("P")
T = TypeVar("T")


class _Method(Generic[P, T]):
    """Descriptor that exposes an operation as a method."""

    def __init__(self, operation: Callable[Concatenate[Settings, P], Flow[T]]) -> None:
        self._operation = operation
        self.__doc__ = operation.__doc__

    def __get__(self, client: "CaseworkerClient", _: object = None) -> Callable[P, T]:
        operation = self._operation

        @wraps(operation)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return client.do(operation(client.settings, *args, **kwargs))

        return cast("Callable[P, T]", call)


class _Iteration(Generic[P, T]):
    """Descriptor that exposes an operation as a generator method."""

    def __init__(self, operation: Callable[Concatenate[Settings, P], Feed[T]]) -> None:
        self._operation = operation
        self.__doc__ = operation.__doc__

    def __get__(
        self, client: "CaseworkerClient", _: object = None
    ) -> Callable[P, Generator[T, None, None]]:
        operation = self._operation

        @wraps(operation)
        def call(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
            return client.iterate(operation(client.settings, *args, **kwargs))

        return cast("Callable[P, Generator[T, None, None]]", call)


class CaseworkerClient:
    """A blocking client of the service; use a separate instance in each concurrent thread.

    Every method raises :class:`ApiError` if the service returns an error, and
    :class:`ServiceUnreachableError` if it does not answer.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 10.0,
        retry: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Create a client of the service at ``base_url``, which defaults to ``CASEWORKER_URL``.

        ``api_key`` defaults to ``CASEWORKER_API_KEY``. ``timeout_seconds`` applies to each
        response. ``transport`` replaces the default HTTP transport.
        """
        self.settings: Final = Settings.of(base_url, api_key, timeout_seconds, retry)
        self._http = httpx.Client(
            base_url=self.settings.base_url,
            headers=self.settings.headers,
            timeout=timeout_seconds,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    create_run = _Method(runs.create_run)
    run_case = _Method(runs.run_case)
    run_graph = _Method(runs.run_graph)
    run_agent = _Method(runs.run_agent)
    get_run = _Method(runs.get_run)
    wait_for_run = _Method(runs.wait_for_run)
    list_runs = _Method(runs.list_runs)
    iterate_runs = _Iteration(runs.iterate_runs)
    cancel_run = _Method(runs.cancel_run)
    cancel_runs = _Method(runs.cancel_runs)
    erase_run = _Method(runs.erase_run)
    erase_data = _Method(runs.erase_data)
    heartbeat = _Method(runs.heartbeat)
    finish_run = _Method(runs.finish_run)
    list_approvals = _Method(runs.list_approvals)
    approve = _Method(runs.approve)
    refuse = _Method(runs.refuse)
    list_calls = _Method(runs.list_calls)
    answer_call = _Method(runs.answer_call)
    stream_events = _Iteration(events.stream_events)
    get_trace = _Method(runs.get_trace)
    explain_run = _Method(runs.explain_run)
    get_call = _Method(runs.get_call)
    list_artifacts = _Method(runs.list_artifacts)
    get_artifact = _Method(runs.get_artifact)
    create_thread = _Method(threads.create_thread)
    get_thread = _Method(threads.get_thread)
    list_threads = _Method(threads.list_threads)
    delete_thread = _Method(threads.delete_thread)
    list_messages = _Method(threads.list_messages)
    send_message = _Method(threads.send_message)
    stream_message = _Iteration(threads.stream_message)
    edit_message = _Method(threads.edit_message)
    retry_message = _Method(threads.retry_message)
    continue_message = _Method(threads.continue_message)
    cancel_thread = _Method(threads.cancel_thread)
    register_graph = _Method(catalog.register_graph)
    get_graph = _Method(GRAPHS.get)
    list_graphs = _Method(GRAPHS.list)
    list_graph_versions = _Method(GRAPHS.versions)
    delete_graph = _Method(GRAPHS.delete)
    validate_graph = _Method(catalog.validate_graph)
    register_agent = _Method(catalog.register_agent)
    get_agent = _Method(AGENTS.get)
    list_agents = _Method(AGENTS.list)
    list_agent_versions = _Method(AGENTS.versions)
    delete_agent = _Method(AGENTS.delete)
    put_schedule = _Method(schedules.put_schedule)
    get_schedule = _Method(schedules.get_schedule)
    list_schedules = _Method(schedules.list_schedules)
    pause_schedule = _Method(schedules.pause_schedule)
    resume_schedule = _Method(schedules.resume_schedule)
    run_schedule = _Method(schedules.run_schedule)
    delete_schedule = _Method(schedules.delete_schedule)
    get_quota = _Method(quotas.get_quota)
    put_quota = _Method(quotas.put_quota)
    delete_quota = _Method(quotas.delete_quota)
    key_usage = _Method(spend.key_usage)
    spend = _Method(spend.spend)
    rotate_webhook_secret = _Method(webhooks.rotate_webhook_secret)
    list_webhook_secrets = _Method(webhooks.list_webhook_secrets)
    list_webhook_deliveries = _Method(webhooks.list_webhook_deliveries)
    get_webhook_delivery = _Method(webhooks.get_webhook_delivery)
    redeliver_webhook = _Method(webhooks.redeliver_webhook)
    list_tools = _Method(catalog.list_tools)
    list_models = _Method(catalog.list_models)
    service_version = _Method(catalog.service_version)

    def do(self, flow: Flow[T]) -> T:
        """Execute an operation and return its result."""
        wire, outcome = _Wire(self._http), None
        try:
            while True:
                outcome = wire.take(flow.send(outcome))
        except StopIteration as end:
            return cast("T", end.value)
        finally:
            wire.close()

    def iterate(self, feed: Feed[T]) -> Generator[T, None, None]:
        """Execute an operation and yield its values."""
        wire, outcome = _Wire(self._http), None
        try:
            while True:
                try:
                    step = feed.send(outcome)
                except StopIteration:
                    return
                if isinstance(step, Emit):
                    yield step.value
                    outcome = None
                else:
                    outcome = wire.take(step)
        finally:
            wire.close()


class _Wire:
    """Executes the steps of one operation, which has at most one open stream."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] | None = None

    def take(self, step: Step) -> Any:
        """Execute a step and return its outcome."""
        if isinstance(step, Send):
            return self._send(step)
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        try:
            return None if self._chunks is None else next(self._chunks, None)
        except httpx.TransportError:
            return None

    def close(self) -> None:
        """Close the open stream, if any."""
        if self._response is not None:
            self._response.close()
            self._response = None

    def _send(self, step: Send) -> httpx.Response | httpx.TransportError:
        self.close()
        request = self._http.build_request(**step.request.arguments())
        try:
            response = self._http.send(request, stream=step.stream)
            if step.stream:
                self._response, self._chunks = response, response.iter_bytes()
                if not response.is_success:
                    response.read()
        except httpx.TransportError as error:
            return error
        return response
