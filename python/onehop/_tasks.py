"""Tasks of a pipeline: dicts, which callers may make and edit, and the rules of their numbers."""
from __future__ import annotations

import operator
from typing import Any, TypeAlias

from . import errors

Task: TypeAlias = "dict[str, Any]"
"""sample_id, file_offset, buffer_address, size_bytes, in this order."""

FIELDS = ("file_offset", "buffer_address", "size_bytes")
"""Its numbers, in the order in which they are checked."""

MOST = (1 << 63) - 1


def is_bool(value: Any) -> bool:
    """Python's or numpy's."""
    return type(value).__name__ in ("bool", "bool_")


def whole(name: str, value: Any) -> int:
    """An integer, of whatever type."""
    try:
        if not is_bool(value):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} is a {type(value).__name__}; give an integer")


def shown(value: Any) -> str:
    """A number in a message, however long it is."""
    try:
        text = str(value)
    except ValueError:  # Python has no decimal form of the longest
        return "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def named(sample_id: Any) -> str:
    """A sample_id in a message: it may be any object, of any length."""
    if isinstance(sample_id, str):
        return repr(sample_id if len(sample_id) <= 60 else sample_id[:57] + "...")
    return shown(sample_id) if type(sample_id) is int else f"of type {type(sample_id).__name__}"


def within(name: str, value: Any, least: int, most: int) -> int:
    """An integer of a range."""
    number = whole(name, value)
    if not least <= number <= most:
        raise errors.InvalidArgument(f"{name} is {shown(number)}",
                                     f"give one from {least} to {most}")
    return number


def fault(field: str, value: int, alignment: int) -> str | None:
    """The rule that a field of a task breaks."""
    if not 0 <= value <= MOST:
        return f"GDS 范围违背: {field} ({shown(value)}) 不在 0 到 {MOST} 之间"
    if value % alignment:
        return f"GDS 对齐违背: {field} ({value}) 未按 {alignment} 字节对齐"
    return None


def field_of(task: Any, name: str) -> Any:
    """A value of a task, which the caller may have made."""
    if not isinstance(task, dict) or name not in task:
        raise errors.InvalidArgument(
            f"a task in pending_queue has no {name}",
            "queue tasks by enqueue_read, or put dicts with its four keys there")
    return task[name]


def size_of(task: Any) -> int:
    """size_bytes of a task, which the caller may have made."""
    size = whole("size_bytes", field_of(task, "size_bytes"))
    reason = fault("size_bytes", size, 1)
    if reason:
        raise errors.InvalidArgument(reason)
    return size


def range_of(task: Any) -> tuple[int, int]:
    """Where a task's bytes go; empty if that cannot be told of one that the caller made."""
    try:
        begin = whole("", field_of(task, "buffer_address"))
        return begin, begin + size_of(task)
    except (TypeError, ValueError):
        return 0, 0
