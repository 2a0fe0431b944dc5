"""What may be a name: of states, events, machines, tags, invocations and sends.

People name things in their own language, with blanks, slashes and emoji, so nearly everything may be a name. Refused is
what could not be seen, typed or addressed: control characters, blanks at an end, and for each kind the few marks that
mean something in the place where it is written. Each function returns what is wrong and how to mend it, or None.
"""

from __future__ import annotations

import unicodedata

MAX_NAME = 200
"""Longest name, in characters."""
_UNSEEN = ("Cc", "Cs", "Zl", "Zp", "Cn")

Wrong = tuple[str, str] | None


def name_problem(text: str) -> Wrong:
    """What no name can be."""
    if not text or text != text.strip():
        return ("begins or ends with a blank", "remove it") if text.strip() else ("is empty", "give it a name")
    if len(text) > MAX_NAME:
        return f"is {len(text)} characters long", f"at most {MAX_NAME}"
    if any(unicodedata.category(each) in _UNSEEN for each in text):
        return "holds a character that nobody can see or type", "no line breaks, tabs or other control characters"
    return None


def state_problem(text: str) -> Wrong:
    """What cannot be the name of a state: dots separate states in a path, '#' begins an id."""
    if "." in text or text.startswith("#"):
        return "a dot separates states, and a leading '#' means an id", "no dot, no leading '#', no blank around it"
    return name_problem(text)


def event_problem(text: str) -> Wrong:
    """What cannot be an event, or the pattern of events: dots separate its parts, the last of which may be '*'."""
    if text == "*":
        return None
    parts = text.removesuffix(".*").split(".")
    if "" in parts or any("*" in part for part in parts):
        return "is not an event", "such as PaymentReceived, payment.received, payment.* or *"
    if text.startswith("after:"):
        return "cannot be an event: events that begin with 'after:' are timers", "use 'after'"
    return name_problem(text)
