"""What one caller may take, from the limits themselves."""

from collections.abc import Mapping

from docs_parts.tables import table
from opdbus.bus.admission import limits
from opdbus.index.database import quota

_MIB = 1 << 20


def limit_rows() -> str:
    """Make a row of each thing that is limited for a connection, a user and all users."""
    counts = [
        ("calls at once", limits.MAX_CALLS),
        ("bulk calls at once", limits.MAX_BULK_CALLS),
        ("open files that come with calls", limits.MAX_FILES),
    ]
    sizes = [
        ("calls that run, with their arguments", limits.MAX_CALLS_BYTES),
        ("replies that are sent and not yet read", limits.MAX_UNREAD),
        ("replies that wait for those before them to be read", limits.MAX_WAITING),
        ("files of vectors, until they are closed", limits.MAX_BULK_BYTES),
    ]
    rows = [_row(name, most, "{:,}", 1) for name, most in counts]
    rows += [_row(name, most, "{:,} MiB", _MIB) for name, most in sizes]
    texts = f"{limits.MAX_TEXTS_OF_A_USER:,}"
    rows.append(("texts that wait for the model", "", texts, "`OP_DBUS_QUEUE_LIMIT`"))
    published = "objects published (`OP_DBUS_PUBLISH_OBJECTS`, `OP_DBUS_PUBLISH_BYTES`)"
    rows.append((published, "", *map(_published, (quota.OF_EACH, quota.of_all(quota.OF_EACH)))))
    return table(("of", "a connection", "a user", "all users"), rows)


def _row(name: str, most: Mapping[str, int], form: str, unit: int) -> tuple[str, ...]:
    scopes = ("connection", "user", "total")
    return name, *(form.format(most[scope] // unit) if scope in most else "" for scope in scopes)


def _published(most: quota.Quota) -> str:
    return f"{most.objects:,}, {most.size // _MIB} MiB"
