"""Errors as they are kept: one line, at most 4 kB, nothing of the row, no credentials; describing never fails."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from spectral.core.events.describe import MAX_ERROR_BYTES, describe, describe_many

CANARY = "canary8472"


def printed(text: str) -> bool:
    """Whether it is one line that every terminal, log and database takes."""
    return text.isprintable() and "\n" not in text and len(text.encode()) <= MAX_ERROR_BYTES


@given(st.text(), st.none() | st.just("platform.project"))
def test_any_message_becomes_one_storable_line(message: str, handler: str | None) -> None:
    text = describe(OSError(message), handler)
    assert "\x00" not in text
    assert len(text.splitlines()) <= 1
    assert len(text.encode()) <= MAX_ERROR_BYTES


def test_an_error_is_named_with_its_class_its_handler_and_its_message() -> None:
    assert describe(OSError("away"), "platform.project") == "OSError: platform.project: away"
    assert describe(OSError("away")) == "OSError: away"


def test_an_error_without_a_message_is_named_all_the_same() -> None:
    assert describe(RuntimeError(), "platform.project").startswith("RuntimeError: platform.project:")


@pytest.mark.parametrize("letter", ["x", "é", "€", "\U0001f4a9"])
@pytest.mark.parametrize("length", [999, 1_000, 1_332, 1_333, 3_997, 4_000, 4_001, 5_000, 1_000_000])
def test_no_script_makes_it_longer_than_the_column(letter: str, length: int) -> None:
    text = describe(OSError(letter * length), "platform.project")
    assert len(text.encode()) <= MAX_ERROR_BYTES
    assert text.startswith(f"OSError: platform.project: {letter}")


def test_a_text_that_was_cut_says_so() -> None:
    assert describe(OSError("x" * 5_000)).endswith("...")


@pytest.mark.parametrize("text", ["a\x00b", "a\nb", "a\r\nb", "a\x1b[31mb", "a\u2028b", "a\x85b", "a\ud800b", "a\tb"])
def test_what_is_no_printable_text_becomes_a_space(text: str) -> None:
    assert describe(OSError(text)) in ("OSError: a b", "OSError: a [31mb")


@pytest.mark.parametrize("text", ["a\u202eb", "a\u200bb", "a\ufeffb", "a\u2066b"])
def test_letters_that_only_reorder_or_hide_are_not_kept(text: str) -> None:
    """A reader must see what is there: U+202E turns around what follows it."""
    assert printed(describe(OSError(text)))


def test_a_class_whose_name_has_two_lines_is_still_one_line() -> None:
    assert printed(describe(type("Two\nLines", (Exception,), {})("x")))


# errors that do not want to be read


class UnspeakableError(Exception):
    def __init__(self, refusal: BaseException) -> None:
        super().__init__("x")
        self._refusal = refusal

    def __str__(self) -> str:
        raise self._refusal


@pytest.mark.parametrize(
    "refusal",
    [RuntimeError("no"), RecursionError(), MemoryError(), SystemExit(1), KeyboardInterrupt(), GeneratorExit()],
)
def test_an_error_that_cannot_be_printed_is_named_by_its_class(refusal: BaseException) -> None:
    try:
        text = describe(UnspeakableError(refusal), "platform.project")
    except BaseException as escaped:  # noqa: BLE001  pytest itself would end of it
        pytest.fail(f"it raised {type(escaped).__name__}")
    assert text.startswith("UnspeakableError: platform.project: (its message cannot be read")


class NotTextError(Exception):
    def __str__(self) -> Any:  # noqa: ANN401  that is the fault
        return 7  # noqa: PLE0307  as above


class SpikyError(Exception):
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"do not ask for {name}")


class SlyTextError(Exception):
    """Whose text is of a class that lies about itself."""

    class Text(str):
        __slots__ = ()

        def __getitem__(self, index: object) -> str:
            raise RuntimeError("no")

    def __str__(self) -> str:
        return self.Text("x")


@pytest.mark.parametrize(
    "error", [NotTextError(), SpikyError("x"), SlyTextError()], ids=lambda each: type(each).__name__
)
def test_no_error_is_too_strange(error: Exception) -> None:
    assert printed(describe(error, "platform.project"))


def test_a_group_names_its_members_each_with_its_message() -> None:
    group = ExceptionGroup("several", [OSError("one"), ExceptionGroup("inner", [KeyError("two")])])
    assert describe(group) == "ExceptionGroup: several [OSError: one; ExceptionGroup: inner [KeyError: 'two']]"


def test_a_member_that_cannot_be_printed_does_not_hide_the_others() -> None:
    group = ExceptionGroup("several", [UnspeakableError(RuntimeError()), OSError("away")])
    assert "OSError: away" in describe(group)


def test_a_group_nested_without_end_is_described() -> None:
    error: Exception = OSError("inmost")
    for _ in range(5_000):
        error = ExceptionGroup("more", [error])
    assert printed(describe(error))


def test_a_group_that_holds_the_same_ones_again_and_again_is_described_in_no_time() -> None:
    error: Exception = OSError("inmost")
    for _ in range(30):
        error = ExceptionGroup("more", [error, error])
    described: list[str] = []
    thread = threading.Thread(target=lambda: described.append(describe(error)), daemon=True)
    thread.start()
    thread.join(5)
    assert described


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("stop"), GeneratorExit()])
def test_what_is_no_exception_is_described_too(error: BaseException) -> None:
    assert describe(error, "platform.project").startswith(f"{type(error).__name__}: platform.project:")


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "a.",
        "a-",
        "password",
        "password=",
        "://",
        "x://y:",
        "a@",
        "'",
        '\\"',
        "bearer ",
        " \n",
        "DETAIL:\n",
        "%",
        "\U0001f4a9",
    ],
)
def test_no_message_takes_long(text: str) -> None:
    """It is described on the event loop, where everybody waits for it."""
    error = OSError(text * (1_000_000 // len(text)))
    began = time.perf_counter()
    describe(error, "platform.project")
    assert time.perf_counter() - began < 1


# several handlers


def test_the_first_error_is_told_in_full_and_the_others_by_name() -> None:
    failures = [("platform.a", OSError("one")), ("platform.b", KeyError("two")), ("platform.c", ValueError("three"))]
    assert describe_many(failures) == "OSError: platform.a: one (also: platform.b KeyError, platform.c ValueError)"


def test_one_error_is_told_as_if_it_were_alone() -> None:
    assert describe_many([("platform.a", OSError("one"))]) == "OSError: platform.a: one"


@pytest.mark.parametrize("letter", ["x", "\U0001f4a9"])
def test_a_long_first_error_does_not_crowd_out_who_else_failed(letter: str) -> None:
    text = describe_many([("platform.a", OSError(letter * 10_000)), ("platform.b", KeyError())])
    assert text.endswith("(also: platform.b KeyError)")
    assert len(text.encode()) <= MAX_ERROR_BYTES


def test_hundreds_of_failures_fit_too() -> None:
    text = describe_many([(f"platform.handler_{number}", OSError("x" * 5_000)) for number in range(500)])
    assert len(text.encode()) <= MAX_ERROR_BYTES


# what must not be kept


class Person(BaseModel):
    """A view of a payload."""

    age: int
    scores: dict[str, int] = {}


@pytest.mark.parametrize(
    "payload",
    [
        f'{{"age": "{CANARY}"}}',
        f'{{"{CANARY}": 1}}',
        f'{{"age": 1, "scores": {{"a": "{CANARY}"}}}}',
        f'{{"age": 1, "scores": {{"{CANARY}": "x"}}}}',
        f'"{CANARY}"',
        f"{{{CANARY}",
    ],
)
def test_a_model_that_does_not_fit_is_described_without_what_was_given(payload: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Person.model_validate_json(payload)
    text = describe(refused.value, "platform.project")
    assert text.startswith("ValidationError: platform.project: ")
    assert CANARY not in text


def test_a_model_that_does_not_fit_is_described_with_where_and_why() -> None:
    with pytest.raises(ValidationError) as refused:
        Person.model_validate_json('{"age": "x"}')
    assert describe(refused.value) == "ValidationError: 1 of Person: age: int_parsing"


def test_of_many_places_that_do_not_fit_a_few_are_named_and_the_rest_counted() -> None:
    with pytest.raises(ValidationError) as refused:
        Person.model_validate({"age": 1, "scores": {str(number): "x" for number in range(100)}})
    text = describe(refused.value)
    assert "100 of Person" in text
    assert text.endswith("; and 95 more")


SECRETS = {
    "url": f"connection to postgresql://ada:{CANARY}@db.example/app failed",
    "url with an at sign in the password": f"postgresql://ada:p@{CANARY}@db.example/app",
    "url with a slash in the password": f"postgresql://ada:p/{CANARY}@db.example/app",
    "url without a user": f"redis://:{CANARY}@cache.example/0",
    "url of SQLAlchemy": f"postgresql+psycopg://ada:{CANARY}@db.example/app",
    "url in its query": f"postgresql://db.example/app?user=ada&password={CANARY}",
    "keywords": f"host=db user=ada password={CANARY} dbname=app",
    "keywords, quoted": f"host=db password='a {CANARY}' dbname=app",
    "keywords, quoted, with a quote": f"host=db password='a\\' {CANARY}' dbname=app",
    "environment": f"PGPASSWORD={CANARY}",
    "environment, prefixed": f"DB_PASSWORD={CANARY}",
    "a dictionary": f"{{'user': 'ada', 'password': '{CANARY}'}}",
    "JSON": f'{{"user": "ada", "password": "{CANARY}"}}',
    "header": f"Authorization: Bearer {CANARY}",
    "header, basic": f"authorization: Basic {CANARY}==",
    "token": f"token={CANARY}",
    "access token": f"access_token={CANARY}&x=1",
    "api key": f"api-key: {CANARY}",
    "secret": f"client_secret: {CANARY}",
    "at the end of a long text": "x" * 3_900 + f" postgresql://ada:{CANARY}@db.example/app",
    "behind much white space": " \n" * 8_000 + f"postgresql://ada:{CANARY}@db.example/app",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_what_looks_like_a_credential_is_scrubbed(kind: str) -> None:
    assert CANARY not in describe(OSError(SECRETS[kind]))


def test_a_secret_that_a_cut_would_split_is_not_kept_by_half() -> None:
    secret = "s3cr3t" * 10
    # The text is looked at up to twice what is kept of it: cut at each of its characters, and behind it.
    for before in range(2 * MAX_ERROR_BYTES - 100, 2 * MAX_ERROR_BYTES + 2):
        text = describe(OSError("\n" * before + f"postgresql://ada:{secret}@db.example/app"))
        assert "s3cr3t" not in text


def test_what_is_no_credential_stays() -> None:
    message = "https://example.org/cards/7: the token of the game is missing; 3 passwords were tried"
    assert describe(OSError(message)) == f"OSError: {message}"
