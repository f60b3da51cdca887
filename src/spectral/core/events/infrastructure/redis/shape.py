"""What is kept in Redis, under which names, and the scripts that change it.

One stream for each lane, `<prefix>:<generation>:<context>:<class>`, with one consumer group. A message leaves its
stream when it is acknowledged, so the length of a stream is what waits and what is handed out. That holds only because
each script runs as a whole or not at all, also across a crash of the server.

Every script is sent in full each time: a server that was restarted has forgotten what it was taught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spectral.core.events.broker import BrokerLane

Command = tuple[str | bytes | int, ...]

GROUP: Final = "workers"
NOBODY: Final = "-"
"""The consumer that holds what was given back, until somebody takes it over."""

NEEDED_RIGHTS: Final = (
    "+@connection +eval +info +scan +unlink +xadd +xlen +xack +xdel +xclaim +xautoclaim +xpending +xreadgroup "
    "+xgroup +xinfo"
)
"""What an ACL has to grant, beside the keys `~<prefix>:*`."""

_FORGOTTEN_AFTER: Final = 3_600_000
"""Milliseconds after which a consumer that holds nothing and never asked again was a worker that is gone."""

AT_ONCE: Final = 500
"""Arguments of one script at most; Lua has a limit, and nobody else is served while one runs."""


class Receipt(NamedTuple):
    """Where a message is kept, and as what."""

    stream: bytes
    entry: bytes


def stream_of(prefix: str, lane: BrokerLane) -> str:
    """The key of the lane's stream."""
    return f"{prefix}:{lane.generation}:{lane.context}:{lane.processing_class}"


def streams_of(prefix: str, generation: int) -> str:
    """A pattern for the keys of all streams of a generation; nothing in a prefix means anything in a pattern."""
    return f"{prefix}:{generation}:*"


# Looked for before it is made: a server whose memory is full must not keep those out who would empty it. The group
# begins with the first message: what was sent before somebody made the group counts too.
_PREPARE: Final = """
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
  return 1
end
for _, told in ipairs(consumers) do
  local consumer = {}
  for at = 1, #told, 2 do consumer[told[at]] = told[at + 1] end
  if consumer.pending == 0 and consumer.idle > tonumber(ARGV[2]) then
    redis.pcall('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end
return 1
"""


def prepare(stream: str | bytes) -> Command:
    """See to it that the stream and its group exist; forget consumers that were workers which are gone."""
    return ("EVAL", _PREPARE, 1, stream, GROUP, _FORGOTTEN_AFTER)


_SEND: Final = """
local room = tonumber(ARGV[1]) - redis.call('XLEN', KEYS[1])
local sent = math.max(0, math.min(room, #ARGV - 1))
for at = 1, sent do redis.call('XADD', KEYS[1], '*', 'reference', ARGV[at + 1]) end
return sent
"""


def send(stream: str, room: int, messages: Iterable[bytes]) -> Command:
    """Add messages while the stream holds fewer than it has room for; answers how many."""
    return ("EVAL", _SEND, 1, stream, room, *messages)


# Old ones first. A stream that vanished (a server that was emptied) is made again: an error would leave what was taken
# from the other streams with a worker that never heard of it.
_TAKE: Final = """
local group, name, left, idle = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local found = {}
local refused = nil
local function ask(at, ...)
  local answer = redis.pcall(...)
  if answer and answer.err and string.find(answer.err, 'NOGROUP', 1, true) then
    local made = redis.pcall('XGROUP', 'CREATE', KEYS[at], group, '0', 'MKSTREAM')
    answer = made.err and made or redis.pcall(...)
  end
  if answer and answer.err then
    refused = refused or answer
    return nil
  end
  return answer
end
local function keep(at, entries)
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      found[#found + 1] = at - 1
      found[#found + 1] = entry[1]
      found[#found + 1] = entry[2][2]
      left = left - 1
    end
  end
end
if idle >= 0 then
  for at = 1, #KEYS do
    local cursor, looks = '0-0', 0
    repeat
      if left <= 0 then break end
      local answer = ask(at, 'XAUTOCLAIM', KEYS[at], group, name, idle, cursor, 'COUNT', left)
      if not answer then break end
      cursor, looks = answer[1], looks + 1
      keep(at, answer[2])
    until cursor == '0-0' or looks == 50
  end
end
for at = 1, #KEYS do
  if left <= 0 then break end
  local answer = ask(at, 'XREADGROUP', 'GROUP', group, name, 'COUNT', left, 'STREAMS', KEYS[at], '>')
  if answer then keep(at, answer[1][2]) end
end
if refused and #found == 0 then return refused end
return found
"""


def take(streams: Sequence[bytes], name: str, limit: int, idle: int | None) -> Command:
    """Hand messages out to a consumer; answers which stream, entry and message, in turn.

    idle: also those that somebody else was handed so many milliseconds ago, and did not acknowledge; none: not now.
    """
    return ("EVAL", _TAKE, len(streams), *streams, GROUP, name, limit, -1 if idle is None else idle)


def wait(streams: Sequence[bytes], name: str, milliseconds: int) -> Command:
    """Hand out one message of each stream, or the first that comes in this time."""
    told = ("XREADGROUP", "GROUP", GROUP, name, "COUNT", 1, "BLOCK", milliseconds, "STREAMS")
    return (*told, *streams, *(">" for _ in streams))


# Both or neither: an entry that is acknowledged and stays would be counted as waiting for ever.
_ACKNOWLEDGE: Final = """
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
"""


def acknowledge(receipts: Iterable[Receipt]) -> Iterator[Command]:
    """Remove messages for good."""
    for stream, entries in _by_stream(receipts):
        yield ("EVAL", _ACKNOWLEDGE, 1, stream, GROUP, *entries)


def give_back(receipts: Iterable[Receipt], idle: int) -> Iterator[Command]:
    """Let it seem as if they had been handed out so many milliseconds ago, to nobody."""
    for stream, entries in _by_stream(receipts):
        yield ("XCLAIM", stream, GROUP, NOBODY, 0, *entries, "IDLE", idle, "JUSTID")


# A consumer is removed only when it holds nothing: what it holds would go with it, and never be handed out again.
_LEAVE: Final = """
for _ = 1, 100 do
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 100, ARGV[2])
  if #held == 0 then return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end
  local claim = {'XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0}
  for _, each in ipairs(held) do claim[#claim + 1] = each[1] end
  for _, each in ipairs({'IDLE', ARGV[4], 'JUSTID'}) do claim[#claim + 1] = each end
  redis.call(unpack(claim))
end
return 0
"""


def leave(stream: bytes, name: str, idle: int) -> Command:
    """Give back whatever a consumer holds, and remove it."""
    return ("EVAL", _LEAVE, 1, stream, GROUP, name, NOBODY, idle)


def _by_stream(receipts: Iterable[Receipt]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Those of one stream together, and not too many at once."""
    streams: dict[bytes, list[bytes]] = {}
    for receipt in receipts:
        streams.setdefault(receipt.stream, []).append(receipt.entry)
    for stream, entries in streams.items():
        for first in range(0, len(entries), AT_ONCE):
            yield stream, entries[first : first + AT_ONCE]
