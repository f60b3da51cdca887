"""Changes, findings and problems in words: what broke whom, and what to do instead. One block of lines for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral.core.contracts.compatibility import ChangeKind

if TYPE_CHECKING:
    from spectral.core.contracts.consumers import Problem
    from spectral.core.contracts.review import ReviewedChange
    from spectral.core.contracts.succession import Finding

_INDENT: Final = "  "


def tell_change(reviewed: ReviewedChange) -> str:
    """`breaking: shop.order.placed: customer.email is gone`, and below it why, whom and what instead."""
    change = reviewed.change
    return _block(
        f"{change.kind.value}: {_subject(change.event_type, change.path)} {change.what}",
        change.why,
        _whom(reviewed),
        f"instead: {change.remedy}" if change.remedy else "",
    )


def tell_problem(problem: Problem) -> str:
    """`breaks billing.send_invoice: shop.order.placed: email is never written`, and what to do."""
    weight = "breaks" if problem.breaks else "doubtful:"
    return _block(
        f"{weight} {problem.handler}: {_subject(problem.event_type, problem.path)} {problem.what}",
        f"try: {problem.remedy}",
    )


def tell_finding(finding: Finding) -> str:
    """`wrong: shop.order.placed is succeeded by shop.order.placed.v2 and has no deadline`, and what to do."""
    weight = "wrong" if finding.fails else "doubtful"
    return _block(f"{weight}: {finding.event_type} {finding.what}", f"try: {finding.remedy}")


def _whom(reviewed: ReviewedChange) -> str:
    change = reviewed.change
    if reviewed.breaks:
        return f"breaks {', '.join(reviewed.breaks)}"
    if change.kind is not ChangeKind.BREAKING or not change.path:
        return ""
    if reviewed.readers:
        return f"breaks no known handler; {', '.join(reviewed.readers)} can read it all the same"
    return "no known handler has it in its model"


def _subject(event_type: str, path: str) -> str:
    return f"{event_type}: {path}" if path else event_type


def _block(first: str, *others: str) -> str:
    return "\n".join([first, *(f"{_INDENT}{each}" for each in others if each)])
