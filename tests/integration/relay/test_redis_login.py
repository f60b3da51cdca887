"""Who Redis lets in, over which line, and which servers will not do."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.redis import RedisReceiver, RedisSender
from spectral.core.events.infrastructure.redis.shape import NEEDED_RIGHTS
from spectral.core.events.infrastructure.redis.standing import Standing
from tests.integration.relay.redis_stage import PATIENTLY, PLAIN, Stage, redis_server, reference, references_of, stage

__all__ = ["redis_server", "stage"]  # fixtures


async def test_a_wrong_password_is_told_without_showing_it(stage: Stage) -> None:
    for user, password in (("default", "the-wrong-canary"), ("nobody", "the-wrong-canary")):
        settings = stage.settings(url=stage.server.url_of(user, password))
        for attempt in (
            RedisSender(settings, stage.prefix).open(),
            RedisReceiver(settings, stage.prefix, "worker-1").open([PLAIN]),
        ):
            with pytest.raises(BrokerLostError, match=r"refuses this login; .* SPECTRAL_BROKER_URL") as lost:
                await attempt
            assert "canary" not in f"{lost.value!r}"
            assert lost.value.__cause__ is None


async def test_without_a_password_nobody_is_let_in(stage: Stage) -> None:
    sender = RedisSender(stage.settings(url=f"redis://127.0.0.1:{stage.server.port}/0"), stage.prefix)
    with pytest.raises(BrokerLostError, match="refuses this login"):
        await sender.open()


async def test_a_user_with_the_rights_that_are_named_can_do_everything_and_with_fewer_is_told_them(
    stage: Stage,
) -> None:
    url = stage.server.url_of("relay", "secret-canary")
    rules = ["on", ">secret-canary", f"~{stage.prefix}:*", *NEEDED_RIGHTS.split()]
    stage.server.command("ACL", "SETUSER", "relay", "reset", *rules)
    sender, receiver = await stage.sender(PLAIN, url=url), await stage.receiver(PLAIN, url=url)
    await sender.send([reference(), reference()])
    received = await receiver.receive(2, PATIENTLY)
    await receiver.give_back(received[:1])
    await receiver.acknowledge(received[1:])
    await receiver.close()
    await sender.forget(1)
    stage.server.command("ACL", "SETUSER", "relay", "-xadd", "-info")
    await sender.open()
    assert sender.advice() == (), "whoever may not ask gets no advice"
    with pytest.raises(BrokerLostError, match=r"must grant: .*xadd") as refused:
        await sender.send([reference()])
    assert "canary" not in str(refused.value)
    stage.server.command("ACL", "SETUSER", "relay", "-eval")
    with pytest.raises(BrokerLostError, match="must grant"):
        await sender.prepare(PLAIN)
    stage.server.command("ACL", "DELUSER", "relay")


async def test_settings_that_lose_messages_are_advised_against(stage: Stage) -> None:
    sender = await stage.sender()
    assert sender.advice() == ()
    stage.server.command("CONFIG", "SET", "appendonly", "no")
    stage.server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        await sender.open()
        receiver = await stage.receiver(PLAIN)
    finally:
        stage.server.command("CONFIG", "SET", "appendonly", "yes")
        stage.server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    log, eviction = sender.advice()
    assert log.endswith("set: appendonly yes")
    assert eviction.endswith("set: maxmemory-policy noeviction")
    assert receiver.advice() == sender.advice()


async def test_a_replica_is_refused_until_it_takes_writes(stage: Stage) -> None:
    sender = await stage.sender(PLAIN)
    stage.server.command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(BrokerLostError, match="Redis refuses"):
            await sender.send([reference()])
        with pytest.raises(BrokerLostError, match="is a replica"):
            await sender.open()
    finally:
        stage.server.command("REPLICAOF", "NO", "ONE")
    await sender.open()
    assert await sender.send([reference()]) == []


@pytest.mark.parametrize(
    ("info", "why"),
    [("redis_version:6.0.16\r\n", "too old"), ("redis_version:7.2.4\r\ncluster_enabled:1\r\n", "cluster")],
)
def test_a_server_that_cannot_do_it_is_refused(info: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Standing.read(info).insist()


@pytest.mark.parametrize(
    "rest", ["canary@127.0.0.1:port/0", "canary@127.0.0.1:1/0?no_such_option=1", "canary@127.0.0.1:1/0?db=x"]
)
def test_an_url_that_cannot_be_read_is_refused_without_showing_it(rest: str) -> None:
    with pytest.raises(ConfigurationError, match="SPECTRAL_BROKER_URL cannot be read") as refused:
        RedisSender(BrokerSettings(kind=BrokerKind.REDIS, url=f"redis://me:{rest}"), "spectral_1")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "advised"),
    [("redis://10.0.0.1/0", 1), ("rediss://10.0.0.1/0", 0), ("redis://localhost/0", 0), ("unix:///run/redis.sock", 0)],
)
def test_a_line_that_others_can_read_along_is_advised_against(url: str, advised: int) -> None:
    sender = RedisSender(BrokerSettings(kind=BrokerKind.REDIS, url=url), "spectral_1")
    assert len(sender.advice()) == advised


async def test_an_encrypted_line_is_used_and_its_certificate_looked_at(stage: Stage, tmp_path: Path) -> None:
    certificate = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", stage.server.port)
        await asyncio.gather(_pump(reader, forth), _pump(back, writer))

    # The server of the wheel speaks no TLS, so somebody does it for it.
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        url = f"rediss://default:{stage.server.password}@localhost:{port}/0"
        with pytest.raises(BrokerLostError, match="certificate"):
            await RedisSender(stage.settings(url=url), stage.prefix).open()
        trusting = f"{url}?ssl_ca_certs={certificate}"
        sender, receiver = await stage.sender(PLAIN, url=trusting), await stage.receiver(PLAIN, url=trusting)
        sent = reference()
        await sender.send([sent])
        assert references_of(await receiver.receive(1, PATIENTLY)) == [sent]
        await receiver.close()
        await sender.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def _certificate(folder: Path) -> Path:
    """For localhost, signed by itself, its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "localhost.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path
