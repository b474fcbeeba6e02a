"""The log: whoever writes it, a line has the same fields, and cannot be forged or lost."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.running import ROOT

# In a process of its own, since the log belongs to a process.
SCRIPT = """
import logging, sys, threading, warnings
import structlog
from libra.balancer import logs
from libra.balancer.log_settings import LogSettings

if sys.argv[3:]:
    logs.redact = lambda logger, name, event: event | {
        key: str(value).replace("secret", "***") for key, value in event.items()}
logs.start_logs(LogSettings(log_format=sys.argv[1], log_level=sys.argv[2]))
logger = logging.getLogger("libra.balancer.store")
logger.debug("not shown at info")
logger.info("Store %s opened.", "a.sqlite", extra={"job": "j"})
structlog.get_logger("libra.new").warning("taken over", job="k", rank=3)
logging.getLogger("uvicorn.error").info("not shown")
logging.getLogger("uvicorn.error").error("cannot accept")
warnings.warn("old")
logger.info("a line\\n2026 forged")
try:
    raise ValueError("secret inside")
except ValueError:
    logger.exception("It failed.")
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
raise KeyError("at the end")
"""


def run(*arguments: str) -> str:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.stdout == ""
    return ended.stderr


def test_json_lines() -> None:
    """Where no terminal is, each line is one JSON object with time, level, event and fields."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in run("auto", "info").splitlines()]
    by_event = {line["event"]: line for line in lines}

    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["time"]) for line in lines)
    assert [line["level"] for line in lines] == [
        *("info", "warning", "error", "warning", "info", "error", "critical", "critical")
    ]
    assert by_event["Store a.sqlite opened."]["job"] == "j"
    assert by_event["Store a.sqlite opened."]["logger"] == "libra.balancer.store"
    assert (by_event["taken over"]["job"], by_event["taken over"]["rank"]) == ("k", 3)
    assert "ValueError: secret inside" in by_event["It failed."]["exception"]
    assert "ZeroDivisionError" in by_event["Unhandled error in thread worker."]["exception"]
    assert "KeyError" in by_event["Unhandled error."]["exception"]
    assert any("UserWarning: old" in event for event in by_event)


def test_text_lines_cannot_be_forged() -> None:
    """A line break in a message does not begin a line."""
    text = run("text", "warning")

    assert "taken over" in text
    assert "opened" not in text
    assert "\x1b[" not in text
    assert "\n2026 forged" not in run("text", "info")


@pytest.mark.parametrize("form", ["text", "json"])
def test_everything_passes_the_redaction(form: str) -> None:
    """The last processor sees fields and traces of every line before they are written."""
    assert "secret" in run(form, "info")
    assert "secret" not in run(form, "info", "redacted")
