"""Sends webhooks to a host's validated address, and verifies TLS certificates by host name.

Each attempt resolves the host once, checks every address, and connects to one of them. Connections
and cookies are not reused, because two names with the same address would share them. Redirects are
not followed, proxies from the environment are not used, and only the head of a response is read.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from caseworker.features.webhooks.delivery import EndpointAnswer
from caseworker.platform.fair_threads import FairThreads
from caseworker.platform.retry_after import retry_after_seconds
from caseworker.platform.webhook_addresses import AddressRefusedError, UrlRules, WebhookUrl

USER_AGENT = "Caseworker"

RESOLVERS = 8
"""Number of threads that resolve host names, so that slow name servers delay only webhooks."""
MAX_CONNECTIONS = 1000
"""Maximum number of connections. It exceeds the number of concurrent attempts, so no attempt waits
for a connection."""


class WebhookSender:
    """Sends webhook requests."""

    def __init__(
        self, rules: UrlRules, *, timeout_seconds: float, tls: ssl.SSLContext | None = None
    ) -> None:
        """Send only where ``rules`` allow it; ``timeout_seconds`` limits each whole attempt."""
        self._rules = rules
        self._timeout_seconds = timeout_seconds
        self._tls = tls
        self._client: httpx.AsyncClient | None = None
        self._resolvers = FairThreads(RESOLVERS, "webhook names")

    async def aclose(self) -> None:
        """Close the client and stop the resolver threads."""
        self._resolvers.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            await self._client.aclose()

    async def send(
        self, url: str, body: bytes, headers: Mapping[str, str], *, attempt: int
    ) -> EndpointAnswer:
        """POST a body and return the outcome; failures are returned, not raised.

        ``attempt`` is the number of the attempt, from 1; it selects one of the host's addresses.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                target = self._rules.read(url)
                address = await self._address(target, attempt)
                return await self._post(target, address, body, headers)
        except AddressRefusedError as error:
            return EndpointAnswer(error=str(error))
        except TimeoutError:
            return EndpointAnswer(error="The request timed out.")
        except (httpx.HTTPError, OSError, ssl.SSLError, UnicodeError) as error:
            return EndpointAnswer(error=_words_of(error))

    async def _opened(self) -> httpx.AsyncClient:
        """Return the client; the first webhook loads the system's certificates."""
        if self._client is not None:
            return self._client
        tls = self._tls or await _usual_tls()
        if self._client is None:  # another attempt may have created it meanwhile
            self._client = httpx.AsyncClient(
                verify=tls,
                trust_env=False,
                follow_redirects=False,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                timeout=self._timeout_seconds,
                limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=0),
            )
        return self._client

    async def _address(self, target: WebhookUrl, attempt: int) -> str:
        """Resolve the host once.

        Raises:
            AddressRefusedError: one of its addresses is not allowed.
            OSError: the host cannot be resolved.
        """
        resolve = partial(socket.getaddrinfo, type=socket.SOCK_STREAM)
        loop = asyncio.get_running_loop()
        entries = await loop.run_in_executor(self._resolvers, resolve, target.host, target.port)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        self._rules.require_public(addresses)
        return addresses[(attempt - 1) % len(addresses)]

    async def _post(
        self, target: WebhookUrl, address: str, body: bytes, headers: Mapping[str, str]
    ) -> EndpointAnswer:
        host = f"[{address}]" if ":" in address else address
        client = await self._opened()
        request = client.build_request(
            "POST",
            f"{target.scheme}://{host}:{target.port}",
            content=body,
            headers={
                "Host": target.origin,
                "Content-Type": "application/json",
                "User-Agent": USER_AGENT,
                **headers,
            },
            extensions={"sni_hostname": target.host, "target": target.target.encode("ascii")},
        )
        response = await client.send(request, stream=True)
        try:
            return _answer_of(response)
        finally:
            with suppress(httpx.HTTPError, OSError):
                await response.aclose()


async def _usual_tls() -> ssl.SSLContext:
    return await asyncio.to_thread(ssl.create_default_context)


def _answer_of(response: httpx.Response) -> EndpointAnswer:
    code = response.status_code
    if response.is_success:
        return EndpointAnswer(status_code=code)
    after = retry_after_seconds(response.headers.get("retry-after", "")) or 0.0
    why = (
        "Redirects are not followed."
        if response.is_redirect
        else f"The endpoint returned status {code}."
    )
    return EndpointAnswer(status_code=code, error=why, retry_after_seconds=after)


def _words_of(error: Exception) -> str:
    """Describe an error without quoting the server or the URL."""
    match error:
        case socket.gaierror():
            return "The host name cannot be resolved."
        case httpx.TimeoutException():
            return "The request timed out."
        case httpx.ConnectError() | OSError():
            causes = (error, error.__cause__, error.__context__)
            certificate = any(_is_of_tls(cause) for cause in causes)
            return (
                "The TLS handshake failed. Check the certificate."
                if certificate
                else "Connection refused."
            )
        case _:
            return "The connection was closed, or the response was not valid HTTP."


def _is_of_tls(error: BaseException | None) -> bool:
    return isinstance(error, ssl.SSLError) or "SSL" in str(error) or "certificate" in str(error)
