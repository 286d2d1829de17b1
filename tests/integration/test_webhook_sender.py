"""Webhook requests over the network: to the checked address, with the original host name."""

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from caseworker.features.webhooks.delivery import EndpointAnswer
from caseworker.features.webhooks.sender import WebhookSender
from caseworker.platform.webhook_addresses import UrlRules
from tests.support.webhook_receiver import FAILED, OK, Receiver, receiving

ANYWHERE = UrlRules(allow_http=True, allow_private=True)
HEADERS = {"webhook-id": "msg-1"}


@asynccontextmanager
async def sending(
    rules: UrlRules = ANYWHERE, seconds: float = 120, **more: Any
) -> AsyncIterator[WebhookSender]:
    sender = WebhookSender(rules, timeout_seconds=seconds, **more)
    try:
        yield sender
    finally:
        await sender.aclose()


async def sent(url: str, **more: Any) -> EndpointAnswer:
    async with sending(**more) as sender:
        return await sender.send(url, b"{}", HEADERS, attempt=1)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Resolve every name to the next of the answers; return the requested names."""
    asked: list[str] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        found = left.pop(0)
        kinds = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in found]
        return [
            (kind, socket.SOCK_STREAM, 6, "", (each, port))
            for kind, each in zip(kinds, found, strict=True)
        ]

    monkeypatch.setattr("caseworker.features.webhooks.sender.socket.getaddrinfo", getaddrinfo)
    return asked


async def test_names_that_are_slow_to_look_up_hold_up_webhooks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lookups do not block the threads that other parts share."""
    answered = threading.Event()
    monkeypatch.setattr(
        "caseworker.features.webhooks.sender.socket.getaddrinfo",
        lambda *_, **__: answered.wait(120),
    )
    async with sending() as sender, asyncio.timeout(150):
        attempts = [
            asyncio.create_task(sender.send(f"https://slow{n}.example/", b"", {}, attempt=1))
            for n in range(40)
        ]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "free") == "free"
        answered.set()
        for each in attempts:
            each.cancel()


async def test_a_webhook_arrives_as_it_was_sent(receiver: Receiver) -> None:
    """Path, query and host name are unchanged, and proxies of the environment are ignored."""
    answer = await sent(receiver.url)

    [arrival] = receiver.arrivals
    assert answer == EndpointAnswer(status_code=204)
    assert (arrival.target, arrival.body) == ("/hook?token=t", b"{}")
    assert arrival.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert arrival.headers["content-type"] == "application/json"
    assert arrival.headers["webhook-id"] == "msg-1"


async def test_the_host_is_resolved_once_and_its_address_is_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that changes its address between the check and the call has no effect."""
    asked = resolving(monkeypatch, ["127.0.0.1"], ["192.0.2.1"])

    answer = await sent(f"http://rebinding.example:{receiver.port}/")

    assert answer.error is None
    assert asked == ["rebinding.example"]
    assert receiver.arrivals[0].headers["host"] == f"rebinding.example:{receiver.port}"


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]
)
async def test_a_name_that_leads_inside_is_not_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """One internal address among public ones is enough; without the rule the request arrives."""
    url = f"http://inside.example:{receiver.port}/"
    resolving(monkeypatch, [address], ["1.1.1.1", address], ["127.0.0.1"])
    public = UrlRules(allow_http=True)

    assert "not public" in str((await sent(url, rules=public)).error)
    assert "not public" in str((await sent(url, rules=public)).error)
    assert receiver.arrivals == []
    assert (await sent(url)).error is None
    assert len(receiver.arrivals) == 1


async def test_the_next_attempt_tries_the_next_address(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the addresses of a host may be unreachable."""
    resolving(monkeypatch, *[["127.0.0.2", "127.0.0.1"]] * 2)
    url = f"http://two.example:{receiver.port}/"
    async with sending() as sender:
        first = await sender.send(url, b"{}", {}, attempt=1)
        second = await sender.send(url, b"{}", {}, attempt=2)

    assert first.error == "Connection refused."
    assert second.error is None


async def test_redirects_are_not_followed(receiver: Receiver) -> None:
    """Even redirects to allowed addresses are not followed."""
    head = f"HTTP/1.1 307 There\r\nLocation: {receiver.url}\r\nContent-Length: 0\r\n\r\n"
    receiver.answer(head.encode(), OK)

    answer = await sent(receiver.url)

    assert (answer.status_code, answer.error) == (307, "Redirects are not followed.")
    assert len(receiver.arrivals) == 1


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("120", 120, 120),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 1e9, 3e9),
        ("Fri, 01 Jan 2000 00:00:00 GMT", 0, 0),
        ("soon", 0, 0),
        ("-1", 0, 0),
        ("Fri, 01 Jan 2100 00:00:00 +99999999999999999999", 0, 0),
        ("Fri, 01 Jan 99999999999999999999 00:00:00 GMT", 0, 0),
    ],
)
async def test_a_receiver_may_ask_for_patience(
    receiver: Receiver, header: str, least: float, most: float
) -> None:
    """Retry-After works in seconds or as a date, and invalid values are ignored."""
    head = f"HTTP/1.1 429 Slow\r\nRetry-After: {header}\r\nContent-Length: 0\r\n\r\n"
    receiver.answer(head.encode())

    answer = await sent(receiver.url)

    assert answer.status_code == 429
    assert least <= answer.retry_after_seconds <= most


async def test_cookies_of_a_receiver_are_not_kept(receiver: Receiver) -> None:
    """The next message to that address may belong to another tenant's receiver."""
    receiver.answer(b"HTTP/1.1 204 OK\r\nSet-Cookie: a=b; Path=/\r\nConnection: close\r\n\r\n")
    async with sending() as sender:
        for attempt in (1, 2):
            await sender.send(receiver.url, b"{}", {}, attempt=attempt)

    assert ["cookie" in arrival.headers for arrival in receiver.arrivals] == [False, False]


async def test_an_endless_answer_is_not_read(receiver: Receiver) -> None:
    """The status line and the headers are sufficient."""
    receiver.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 100_000)

    assert await sent(receiver.url) == EndpointAnswer(status_code=200)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, "The request timed out."),
        (b"", "The connection was closed, or the response was not valid HTTP."),
        (b"hello\r\n\r\n", "The connection was closed, or the response was not valid HTTP."),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "not valid HTTP"),
        (FAILED, "The endpoint returned status 500."),
    ],
    ids=["silent", "closed", "no http", "endless head", "failed"],
)
async def test_what_goes_wrong_is_an_answer(
    receiver: Receiver, answer: bytes | None, error: str
) -> None:
    """The error is our own text and contains nothing of the receiver's answer."""
    receiver.answer(answer)

    assert error in str(
        (await sent(receiver.url, seconds=120 if answer is not None else 0.2)).error
    )


async def test_a_host_that_is_not_there_is_an_answer() -> None:
    """The error contains neither its name nor its port."""
    assert "resolved" in str((await sent("http://nowhere.invalid/")).error)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        assert (await sent(url)).error == "Connection refused."


def certified(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a server with this name and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(_alternative(name), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "both.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))


def _alternative(name: str) -> x509.SubjectAlternativeName:
    try:
        return x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))])
    except ValueError:
        return x509.SubjectAlternativeName([x509.DNSName(name)])


@pytest.mark.parametrize(
    ("certified_for", "accepted"),
    [("hooks.example", True), ("other.example", False), ("127.0.0.1", False)],
)
async def test_the_certificate_must_be_that_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certified_for: str, accepted: bool
) -> None:
    """The connection itself uses the resolved address."""
    of_server, of_client = certified(tmp_path, certified_for)
    resolving(monkeypatch, ["127.0.0.1"])
    async with receiving(of_server) as receiver:
        answer = await sent(f"https://hooks.example:{receiver.port}/", tls=of_client)

    assert answer == (
        EndpointAnswer(status_code=204)
        if accepted
        else EndpointAnswer(error="The TLS handshake failed. Check the certificate.")
    )
    assert len(receiver.arrivals) == accepted


async def test_an_unknown_certificate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate without a trusted issuer fails the handshake."""
    of_server, _ = certified(tmp_path, "hooks.example")
    resolving(monkeypatch, ["127.0.0.1"])
    async with receiving(of_server) as receiver:
        answer = await sent(f"https://hooks.example:{receiver.port}/")

    assert answer.error == "The TLS handshake failed. Check the certificate."
    assert receiver.arrivals == []
