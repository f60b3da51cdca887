"""Who may call the agent tools over HTTP."""

from __future__ import annotations

import pytest

from spectral.core.events.failure import ConfigurationError
from spectral_ops.mcp.http import HttpSettings, is_loopback, is_wildcard

TOKEN = "0123456789abcdef"
EVERYWHERE = "0.0.0.0"  # noqa: S104  refused, that is the point


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "::1"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    assert HttpSettings(host).token is None


@pytest.mark.parametrize("host", ["10.0.0.1", EVERYWHERE, "::", "ops.example.com", "", "127.0.0.1.example.com"])
def test_any_other_address_is_refused_without_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="set SPECTRAL_MCP_TOKEN"):
        HttpSettings(host, names=("ops",))
    assert HttpSettings(host, token=TOKEN, names=("ops",)).token == TOKEN


def test_a_name_that_others_call_it_by_is_refused_without_a_token() -> None:
    for name in ("ops.example.com", "10.0.0.1", "::2"):
        with pytest.raises(ConfigurationError, match=r"set SPECTRAL_MCP_TOKEN .* leave out --allow-host"):
            HttpSettings(names=("localhost", name))
        assert name in HttpSettings(token=TOKEN, names=(name,)).names
    assert HttpSettings(names=("localhost", "127.0.0.2", "::1", "[::1]")).token is None


def test_tools_that_change_something_are_refused_without_a_token() -> None:
    with pytest.raises(ConfigurationError, match=r"set SPECTRAL_MCP_TOKEN .* leave out --allow-writes"):
        HttpSettings(writes=True)
    assert HttpSettings(token=TOKEN, writes=True).writes


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(HttpSettings(token=TOKEN))


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 16 characters"):
        HttpSettings(token="short")


@pytest.mark.parametrize("host", [EVERYWHERE, "::", ""])
def test_every_address_needs_the_names_that_it_is_called_by(host: str) -> None:
    assert is_wildcard(host)
    with pytest.raises(ConfigurationError, match="--allow-host"):
        HttpSettings(host, token=TOKEN)
    assert HttpSettings(host, token=TOKEN, names=("ops.example.com",)).hosts == {"ops.example.com"}


def test_it_answers_to_its_own_names_only() -> None:
    assert HttpSettings().hosts == {"127.0.0.1", "localhost", "[::1]"}
    assert HttpSettings("10.0.0.1", token=TOKEN, names=("ops", "::2")).hosts == {"10.0.0.1", "ops", "[::2]"}
