"""Values of the services as JSON documents: what `--json` and the agent tools show. Keys are only ever added."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python


def as_document(value: object) -> Any:  # noqa: ANN401  JSON is whatever it is
    """The value and everything in it; times in ISO 8601, spans in seconds."""
    return to_jsonable_python(value, timedelta_mode="float")
