"""The section of RESULTS.md that a benchmark prints: between two comments, replaced as a whole."""

from pathlib import Path


def write_section(path: Path, name: str, text: str, *, command: str = "") -> None:
    """Put Markdown between the two comments of a name, or after all else where there are none.

    Args:
        command: what prints the figures, by default ``make bench-NAME``.

    Raises:
        ValueError: the file has one of the two comments, or one twice.
    """
    begin, end = f"<!-- begin bench-{name} -->", f"<!-- end bench-{name} -->"
    old = path.read_text() if path.is_file() else ""
    counts = old.count(begin), old.count(end)
    if counts not in ((0, 0), (1, 1)) or (counts == (1, 1) and old.index(begin) > old.index(end)):
        raise ValueError(f"{path}: must hold {begin} and {end} once, in this order, or neither")
    section = f"{begin}\n\n{text.strip()}\n\n{end}"
    if counts == (1, 1):
        before, rest = old.split(begin)
        new = before + section + rest.split(end)[1]
    else:
        title = name.replace("-", " ").capitalize()
        heading = f"## {title}\n\n    {command or f'make bench-{name}'}\n\n"
        new = f"{old.rstrip()}\n\n".lstrip() + heading + section + "\n"
    path.write_text(new)
