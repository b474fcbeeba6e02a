"""The table of all settings in the documentation, made from the code.

``python -m libra.balancer.config_table docs/operating.md`` writes it anew between its marks.
"""

import re
import sys
from pathlib import Path

from libra.balancer.config import shown_default
from libra.balancer.config_fields import declared, groups

_MARKS = re.compile(r"(<!-- settings -->\n).*?(<!-- /settings -->)", re.DOTALL)


def settings_table() -> str:
    """Return Markdown tables of every setting, one a group."""
    parts = []
    for group, owner in groups().items():
        parts.append(f"**{(owner.__doc__ or group).partition(chr(10))[0]}**\n")
        parts.append("| key | flag and variable | default | what it is |\n|---|---|---|---|")
        for setting in declared().values():
            if setting.group == group:
                words = f"; {', '.join(setting.choices)}" if setting.choices else ""
                cells = (
                    f"`{setting.name}`",
                    f"`{setting.flag}` `{setting.variable}`",
                    shown_default(setting),
                    (setting.help + words).replace("|", "\\|"),
                )
                parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)


def with_table(text: str) -> str:
    """Return a document with the table between its marks brought up to date."""
    table = settings_table()
    return _MARKS.sub(lambda marks: f"{marks[1]}\n{table}\n{marks[2]}", text)


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_table(document.read_text()))
