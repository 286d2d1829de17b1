"""Functions and code agents in the service: their model calls, tools, results and questions.

The function of a step is executed again after a crash, and after an approval that the run was
suspended for. It then gets the recorded replies and results, as a later attempt of an external run.

A stop ends the function at its next ``await``, or at its next call. Its result is dropped, even if
a library has caught the stop.
"""

import asyncio
import hashlib
import inspect
import json
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property, partial, wraps
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from pydantic import TypeAdapter

from caseworker.core.budget.retry import ONE_ATTEMPT
from caseworker.core.budget.stops import HandOver, Stop
from caseworker.core.trace.frozen_json import ValueLimits
from caseworker.engine.call import AttemptError, Call, Reply
from caseworker.engine.containment import STOPS, contained, in_thread
from caseworker.engine.context import ExecutionContext, FlowContext
from caseworker.engine.ports import HASH_CHARS
from caseworker.engine.report import class_of
from caseworker.engine.waiting_calls import Decision, Question, WaitingCalls
from caseworker.features.external.session import ExternalData, GatewaySession
from caseworker.features.external.sessions import Sessions
from caseworker.models.gateway import ModelGateway
from caseworker.nodes.approval import DEFAULT_TIMEOUT_SECONDS
from caseworker.nodes.function import FunctionNode, execution_context, is_awaitable
from caseworker.platform.fair_threads import CallThreads
from caseworker.platform.logs.errors import message_of_error
from caseworker.tools.ports import ONE_TOOL_CALL
from caseworker.tools.results import result_of_async

_JSON: Final = TypeAdapter[Any](Any)


@dataclass(slots=True)
class CodeContext(ExecutionContext):
    """The context of a function in the service.

    In a synchronous function, its methods block and return their results.
    """

    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Values of the variables that the definition of a code agent declares."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Conversation of a code agent, as ``{role, content}``; the last message is its ``input``."""
    work: "StepWork | None" = None
    """Makes the calls of the step."""

    @property
    def models(self) -> "StepModels":
        """Clients of the models that the run may call."""
        return self._work.models

    def tool(self, fn: Callable[..., Any], *, idempotent: bool = False) -> Callable[..., Any]:
        """Return a function like ``fn`` whose calls are journaled and counted as tool calls.

        It is a coroutine function if the step's function is one. Arguments and result must be JSON
        values, or be convertible to JSON by pydantic; the result is returned as JSON.

        A call is made at most once, unless it is ``idempotent``. The returned function raises

        - CallFailedError: ``fn`` raised an exception, now or before a crash; ``error_class`` is its
          class.
        - OutcomeUnknownError: a crash interrupted the call.
        """
        return self._work.tool(fn, idempotent=idempotent)

    def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """Return the result of ``fn``, a JSON value; it is recorded and not computed again.

        A repeated name is another result; give parallel steps different names. An interrupted call
        is repeated. Raises CallFailedError as :meth:`tool`. The trace shows a tool call without
        costs.
        """
        return self._work.awaited(self._work.call(fn, name, name))

    def ask(self, question: str, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> Any:
        """Request an approval, and return the :class:`Decision` with ``approved`` and ``reason``.

        While the step only waits for it, the run is suspended.
        """
        return self._work.awaited(self._work.ask(question, timeout_seconds))

    @property
    def _work(self) -> "StepWork":
        if self.work is None:
            raise LookupError("Only a step of a run in the service has models, tools and steps.")
        return self.work


async def run_code(
    function: FunctionNode, context: FlowContext, step_input: Any, **about: Any
) -> Any:
    """Run a function as a step or as a code agent; ``about`` are more fields of its context.

    Raises:
        Exception: the function raised it.
        Stop: a limit or a cancel request ended it.
    """
    work, usual = StepWork(context), execution_context(context, step_input)
    if function.blocking:  # its thread has no event loop
        work.session.touch()
    usual_limits = {each.name: getattr(usual, each.name) for each in fields(usual)}
    try:
        try:
            async with asyncio.timeout(None) as limit:
                work.limit = limit
                running = function.execute(CodeContext(**usual_limits, **about, work=work))
                result = await contained(running, unchanged=STOPS)
        finally:
            await work.close()
    except (Exception, BaseExceptionGroup):
        if work.stop is None:
            raise
    if (stop := work.stop) is not None:
        raise stop.with_traceback(None)
    return result


class StepWork:
    """Makes the calls of one execution of a function."""

    def __init__(self, context: FlowContext) -> None:
        self.context = context
        self.models = StepModels(self)
        self.limit: asyncio.Timeout | None = None
        """Interrupts the function; None before its start and after its end."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._repeated: Counter[str] = Counter()
        self._pending: set[Future[Any]] = set()
        self._closed = False

    @cached_property
    def session(self) -> GatewaySession:
        """The recorded calls of the step; most functions need none."""
        session = GatewaySession(ExternalData(), self.context)
        session.start_next_attempt()
        session.on_end(self._interrupt)
        return session

    @property
    def stop(self) -> Stop | None:
        """The stop of the step, if any."""
        return self.session.stop if "session" in self.__dict__ else self.context.token.stop

    @property
    def is_in_thread(self) -> bool:
        """Whether the caller runs in another thread than the event loop."""
        return threading.get_ident() != self._thread

    def check(self) -> None:
        """Check that the step may still make calls.

        Raises:
            Stop: the step was stopped.
            HandOver: the function of the step has ended.
        """
        if (stop := self.stop) is not None:
            raise stop.with_traceback(None)
        if self._closed:
            raise HandOver("The step of this call has ended.")

    def awaited(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return ``work`` to await it; in a thread, wait for it and return its result."""
        if not self.is_in_thread:
            return work
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future.result()

    async def close(self) -> None:
        """Refuse further calls, and cancel those in flight."""
        self._closed, self.limit = True, None
        for future in tuple(self._pending):
            future.cancel()
        self.models.close()
        if "session" in self.__dict__:
            await self.session.close()

    def _interrupt(self) -> None:
        if self.limit is not None:
            self.limit.reschedule(0)

    def tool(self, fn: Callable[..., Any], *, idempotent: bool) -> Callable[..., Any]:
        """See :meth:`CodeContext.tool`."""
        signature, name = inspect.signature(fn), getattr(fn, "__name__", type(fn).__name__)
        self.session.tools.note_journaled(name)

        async def call_function(*args: Any, **kwargs: Any) -> Any:
            arguments = _JSON.dump_python(
                dict(signature.bind(*args, **kwargs).arguments), mode="json"
            )
            return await self.call(
                partial(fn, *args, **kwargs),
                name,
                json.dumps([name, arguments], sort_keys=True),
                per_attempt=ONE_TOOL_CALL,
                repeatable=idempotent,
                metadata={"args": self.context.service(ModelGateway).display(arguments)},
            )

        blocking = self.is_in_thread
        return wraps(fn)(
            (lambda *a, **k: self.awaited(call_function(*a, **k))) if blocking else call_function
        )

    async def call(self, fn: Callable[[], Any], name: str, text: str, **about: Any) -> Any:
        """Call a function and return its result as JSON, or the recorded result.

        ``text`` identifies the call among those with other texts; equal calls are counted.

        Raises:
            CallFailedError: the function raised an exception.
            OutcomeUnknownError: a call that must not be repeated was interrupted.
        """
        self.check()
        digest, number = self._next(text)
        call = _FunctionCall(
            key=self.context.path.call("tool", f"{digest}-{number}"),
            kind="tool",
            name=name,
            request_hash=digest,
            retry=ONE_ATTEMPT,
            function=fn,
            threads=self.context.services.get(CallThreads),
            limits=self.context.limits,
            **about,
        )
        return (await self.session.perform(call)).value

    async def ask(self, question: str, timeout_seconds: float) -> Decision:
        """See :meth:`CodeContext.ask`."""
        self.check()
        digest, number = self._next(question)
        path = self.context.path.call("ask", f"{digest}-{number}")
        approval_question = Question(
            subject=self.context.node_id,
            message=question,
            arguments={},
            schema=None,
            timeout_seconds=timeout_seconds,
        )
        return await self.context.service(WaitingCalls).decision(
            self.context, path, approval_question
        )

    def _next(self, text: str) -> tuple[str, int]:
        """Return the digest of a text, and how often the function has used it."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]
        self._repeated[digest] += 1
        return digest, self._repeated[digest]


@dataclass(kw_only=True, eq=False)
class _FunctionCall(Call):
    """A call of a function, which runs in a thread unless it is a coroutine function."""

    function: Callable[[], Any]
    threads: CallThreads | None
    limits: ValueLimits

    async def send(self, attempt: int) -> Reply:
        """Call the function once.

        Raises:
            AttemptError: the function raised an exception.
        """
        try:
            return Reply(await contained(self._result(), unchanged=STOPS))
        except Exception as error:
            message, kind = message_of_error(error), class_of(error)
            raise AttemptError(message, error_class=kind, retryable=False) from error

    async def _result(self) -> Any:
        if inspect.iscoroutinefunction(self.function):
            result = await self.function()
        else:
            result = await in_thread(self.function, self.threads, unchanged=STOPS)
            result = await result if is_awaitable(result) else result
        max_bytes = self.limits.max_value_bytes
        return (await result_of_async([result], threads=self.threads, max_bytes=max_bytes))[
            "value"
        ][0]


class StepModels:
    """Clients of the models that a step may call, under the budget and the journal of its run."""

    def __init__(self, work: StepWork) -> None:
        self._work = work

    @property
    def base_url(self) -> str:
        """Base URL for clients of OpenAI that open their own connections.

        Raises:
            RuntimeError: this process does not serve HTTP.
        """
        return self._url("openai_base_url")

    @property
    def anthropic_base_url(self) -> str:
        """Base URL for clients of Anthropic that open their own connections.

        Raises:
            RuntimeError: this process does not serve HTTP.
        """
        return self._url("anthropic_base_url")

    @cached_property
    def api_key(self) -> str:
        """Key for the base URLs; it is valid until the function ends."""
        self._work.check()
        return self._sessions.offer(self._work.session)

    def close(self) -> None:
        """End the validity of the key."""
        if (key := self.__dict__.get("api_key")) is not None:
            self._sessions.withdraw(key)

    @property
    def _sessions(self) -> Sessions:
        return self._work.context.service(Sessions)

    def _url(self, name: str) -> str:
        if self._sessions.url is None:
            raise RuntimeError("This process serves no HTTP: use context.models.http_client().")
        return self._sessions.url + self._sessions.addresses[name]

    def http_client(self, library: ModuleType | None = None) -> Any:
        """Return an HTTP client that reaches the models without a socket, at any base URL.

        ``library`` is ``httpx`` or ``httpx2``; the default is ``httpx2`` if it is installed. The
        client is an ``AsyncClient``; a synchronous function gets a ``Client``.
        """
        if library is None:
            library = import_module("httpx2" if find_spec("httpx2") else "httpx")
        kind = library.Client if self._work.is_in_thread else library.AsyncClient
        return kind(transport=_Transport(library, self._work), timeout=None)

    def openai(self, **options: Any) -> Any:
        """Return an ``AsyncOpenAI``, or an ``OpenAI`` where ``http_client`` is a ``Client``.

        Raises:
            ModuleNotFoundError: the package ``openai`` is not installed.
        """
        return self._client("openai", "OpenAI", options)

    def anthropic(self, **options: Any) -> Any:
        """Return an ``AsyncAnthropic`` or an ``Anthropic``; see :meth:`openai`."""
        return self._client("anthropic", "Anthropic", options)

    def _client(self, package: str, name: str, options: Mapping[str, Any]) -> Any:
        sdk = import_module(package)
        client: type = sdk.DefaultAsyncHttpxClient.__bases__[0]
        usual = {
            "api_key": "none",
            "base_url": f"http://localhost/{package}",
            "http_client": self.http_client(import_module(client.__module__.partition(".")[0])),
            "max_retries": 0,  # the service retries
        }
        kind = name if self._work.is_in_thread else f"Async{name}"
        return getattr(sdk, kind)(**{**usual, **options})


class _Transport(nullcontext[None]):
    """Transport of an HTTP client of ``library``, which answers requests in this process."""

    def __init__(self, library: ModuleType, work: StepWork) -> None:
        super().__init__()
        self._library = library
        self._work = work

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request; a stream is passed on as it arrives."""
        return await self._reply(request, await request.aread())

    def handle_request(self, request: Any) -> Any:
        """Answer a request from a thread; a stream is read to its end first."""
        content = request.read()

        async def read_reply() -> Any:
            reply = await self._reply(request, content)
            about = {"headers": reply.headers, "content": await reply.aread()}
            return self._library.Response(reply.status_code, **about)

        return self._work.awaited(read_reply())

    async def _reply(self, request: Any, content: bytes) -> Any:
        work = self._work
        work.check()
        sessions, path = work.context.service(Sessions), request.url.path
        reply = await sessions.reply(work.session, path, request.headers, content)
        work.check()  # a library would catch the refusal as an exception
        status, headers, body = reply
        return self._library.Response(status, headers=dict(headers), content=body)

    async def aclose(self) -> None:
        """Close nothing."""

    def close(self) -> None:
        """Close nothing."""
