"""An operator's connection finds out by itself that the server is gone."""

from __future__ import annotations

import pytest
from psycopg import conninfo

from spectral.core.database import connect

pytestmark = pytest.mark.database


async def test_a_server_that_is_gone_without_a_word_is_noticed_as_soon_as_by_a_worker(database: str) -> None:
    async with connect(database, "doctor") as opened:
        found = opened.connection.info.get_parameters()
    assert {name: value for name, value in found.items() if name.startswith(("keepalives", "tcp_", "connect_"))} == {
        "keepalives": "1",
        "keepalives_idle": "5",
        "keepalives_interval": "3",
        "keepalives_count": "3",
        "tcp_user_timeout": "15000",
        "connect_timeout": "10",
    }


async def test_what_the_connection_string_says_of_it_stays(database: str) -> None:
    own = conninfo.make_conninfo(database, keepalives_idle=60, tcp_user_timeout=1000, connect_timeout=3)
    async with connect(own, "doctor") as opened:
        found = opened.connection.info.get_parameters()
    assert [found[name] for name in ("keepalives_idle", "tcp_user_timeout", "connect_timeout")] == ["60", "1000", "3"]
    assert found["keepalives_count"] == "3"
