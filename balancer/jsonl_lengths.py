"""Lengths in a field of JSON lines, read by Arrow some megabytes at a time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from libra.balancer.arrow_lengths import array_lengths, check_column, has_lengths, wrong_kind
from libra.balancer.packed import Integers
from libra.balancer.rows import TOO_LARGE, checked_rows, complaint, joined
from libra.balancer.text_lengths import line_chunks

_LONGEST = int(np.iinfo(np.int64).max)


def read_jsonl(path: Path, field: str) -> Integers:
    """Return the lengths in a field of JSON lines: integers, or lists, whose lengths count.

    All other fields are passed over. Blank lines count as lines, but are no rows.

    Raises:
        ValueError: a line that is no JSON object, or whose field is no length; names it.
    """
    source = f"lengths={path}"
    parts: list[Integers] = []
    kind: Any = None  # as the first line has it
    for first, lines in line_chunks(path):
        filled = [line for line in lines if line.strip()]
        if not filled:
            continue
        try:
            if kind is None:
                kind = pa.infer_type([_value(filled[0], field, source)])
            parts.append(_lengths(filled, field, kind, source))
        except (ValueError, OverflowError) as error:
            wrong = _wrong(lines, first, field, source, lists=kind and pa.types.is_list(kind))
            raise ValueError(wrong or f"{source}, from line {first}: {error}") from error
    return joined(parts, source)


def _lengths(lines: list[bytes], field: str, kind: Any, source: str) -> Integers:
    if not has_lengths(kind):
        raise ValueError(f"field {field!r} {wrong_kind(kind)}")
    # One block, since no object may lie across two.
    block = b"".join(lines) + b"\n"
    table = pj.read_json(
        pa.BufferReader(block),
        read_options=pj.ReadOptions(block_size=len(block) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema({field: kind}), unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(lines):
        raise ValueError(f"{source}: must have one object a line")
    values = array_lengths(table.column(0).combine_chunks())
    return checked_rows(values, source, 0)


def _wrong(lines: list[bytes], first: int, field: str, source: str, *, lists: bool | None) -> str:
    """Return the complaint about the first line that is no length; none where Arrow knows better.

    Whether the field holds ``lists`` is ``None`` where its first line does not say it.
    """
    for number, line in enumerate(lines, start=first):
        where = f"{source}, line {number}"
        if line.strip():
            value = _value(line, field, where)
            length = len(value) if isinstance(value, list) else value
            if isinstance(length, bool) or not isinstance(length, int):
                return f"{where}: {field}={value!r:.80} must be an integer, or a list of tokens"
            if not 1 <= length <= _LONGEST:
                return f"{where}: {complaint(length if length < 1 else TOO_LARGE)}"
            if lists is not None and lists != isinstance(value, list):
                return (
                    f"{where}: must be {'a list' if lists else 'an integer'}, as lines before are"
                )
    return ""


def _value(line: bytes, field: str, where: str) -> Any:
    """Return a line's field.

    Raises:
        ValueError: not a JSON object, or one without it.
    """
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError(f"{where}: is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{where}: is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{where}: must be a JSON object, not {type(record).__name__}")
    check_column(field, list(record), where)
    return record[field]
