"""The page of one event, in the order in which a reader asks: what it says, what it carries, who sends, who reads."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from spectral.core.contracts.contract import family_of
from spectral.core.retention.policy import Subject, policy_for
from spectral_ops.catalogue.fields import fields_of
from spectral_ops.catalogue.markdown import code, fenced, place_link, prose, table

if TYPE_CHECKING:
    from pathlib import Path

    from spectral.core.retention import Registry
    from spectral_ops.catalogue.entry import Catalogue, EventEntry, Reader


def event_page(entry: EventEntry, catalogue: Catalogue, *, page: Path, root: Path, retention: Registry) -> str:
    """All that is known of the event; the parts are separated by blank lines."""
    parts = [
        f"# {entry.event_type}\n",
        f"{prose(entry.contract.summary)}\n",
        *([f"{prose(entry.text)}\n"] if entry.text else []),
        *_warning(entry, catalogue),
        _facts(entry, catalogue, page, root),
        "## Payload\n",
        _payload(entry),
        *_examples(entry),
        "## Producers\n",
        _producers(entry, page, root),
        "## Consumers\n",
        _consumers(entry, page, root),
        "## Retention\n",
        _retention(retention),
    ]
    return "\n".join(parts)


def _warning(entry: EventEntry, catalogue: Catalogue) -> list[str]:
    """The deprecation, where a reader cannot overlook it."""
    going = entry.contract.deprecation
    if going is None:
        return []
    instead = "" if going.replaced_by is None else f" Use {_event_link(going.replaced_by, catalogue)} instead."
    return [
        f"> [!WARNING]\n> Deprecated: published until {going.deadline.isoformat()}.{instead} {prose(going.reason)}\n"
    ]


def _event_link(event_type: str, catalogue: Catalogue) -> str:
    known = any(entry.event_type == event_type for entry in catalogue.events)
    return f"[{code(event_type)}]({event_type}.md)" if known else code(event_type)


def _facts(entry: EventEntry, catalogue: Catalogue, page: Path, root: Path) -> str:
    contract = entry.contract
    lines = [
        f"- Owner: {code(contract.owner)}",
        f"- Version: {contract.version}",
        f"- Contract: {place_link(entry.place, page, root)}, payload {code(contract.payload.__name__)}",
    ]
    family = family_of(entry.event_type)[0]
    others = [each.event_type for each in catalogue.events if each is not entry]
    kin = [_event_link(each, catalogue) for each in others if family_of(each)[0] == family]
    if kin:
        lines.append(f"- Other versions: {', '.join(kin)}")
    return "\n".join(lines) + "\n"


def _payload(entry: EventEntry) -> str:
    # In the order of the class, which is the order its author chose; the snapshot's is that of the alphabet.
    fields = fields_of(entry.contract.payload.model_json_schema(mode="serialization"))
    if not fields:
        return "It carries nothing.\n"
    rows = [
        (code(field.path), prose(field.type), "yes" if field.required else "no", prose(field.text)) for field in fields
    ]
    return table(("Field", "Type", "Required", "Description"), rows)


def _examples(entry: EventEntry) -> list[str]:
    examples = entry.contract.examples
    parts = ["## Example\n" if len(examples) == 1 else "## Examples\n"]
    parts.extend(fenced("json", json.dumps(dict(each), indent=2, ensure_ascii=False)) for each in examples)
    return parts


def _producers(entry: EventEntry, page: Path, root: Path) -> str:
    if not entry.producers:
        return f"No code in these packages publishes it; its owner is {code(entry.contract.owner)}.\n"
    return "\n".join(f"- {place_link(each, page, root)}" for each in entry.producers) + "\n"


def _consumers(entry: EventEntry, page: Path, root: Path) -> str:
    if not entry.readers:
        return "No consumer here handles it.\n"
    rows = [
        (code(each.handler), code(each.context), place_link(each.place, page, root), _reads(each))
        for each in entry.readers
    ]
    return table(("Handler", "Context", "Code", "Reads"), rows)


def _reads(reader: Reader) -> str:
    if reader.model is None:
        return "the envelope only"
    fields = ", ".join(code(path) for path in reader.reads) or "no field"
    return f"{fields} (as {code(reader.model)})"


def _retention(registry: Registry) -> str:
    event, record = policy_for(registry, Subject.OUTBOX_ROW), policy_for(registry, Subject.EVENT_HANDLED)
    end = "then it is deleted" if event.hard_delete else "and there it stays"
    return (
        f"{_days(event.active)} after its delivery the event is put away, for {_days(event.grace)}; {end}. "
        f"A handler's dedup record is put away after {_days(record.active)}. "
        "An event that waits or has failed is kept until it is delivered or discarded. "
        "These are the policies unless a deployment sets its own.\n"
    )


def _days(span: timedelta) -> str:
    return f"{span / timedelta(days=1):g} days"
