"""The log: one pipeline for every line, whoever writes it, to standard error.

A line has ``time`` (UTC), ``level``, ``event`` and its own fields: those of structlog, and what
``logging`` is given as ``extra``. People at a terminal get text, programs one JSON object a line.
"""

import logging
import sys
import threading
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from libra.balancer.log_settings import LogSettings
from libra.balancer.redact import redact


def start_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send all log lines, warnings and unhandled errors of this process through the pipeline."""
    target = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(_formatter(as_text=as_text, colours=as_text and target.isatty()))
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level)
    # Its lines about starting and stopping repeat ours.
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = _log_unhandled
    threading.excepthook = _log_thread
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _shared() -> list[Processor]:
    """Return what is done to a line whether structlog or ``logging`` writes it."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]


def _formatter(*, as_text: bool, colours: bool) -> logging.Formatter:
    render: Processor = (
        structlog.dev.ConsoleRenderer(
            colors=colours,
            timestamp_key="time",
            exception_formatter=structlog.dev.plain_traceback,
            sort_keys=False,
        )
        if as_text
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _one_line,
            # A trace as text before secrets are looked for: it may hold some.
            structlog.processors.format_exc_info,
            redact,
            render,
        ],
    )


def _one_line(_: Any, __: str, event: EventDict) -> EventDict:
    """Put the message on one line, with the usual fields first: a line break forges lines."""
    message = str(event.pop("event", "")).replace("\r", "\\r").replace("\n", "\\n")
    first = {"time": event.pop("time", None), "level": event.pop("level", None), "event": message}
    return first | dict(event)


def _log_unhandled(kind: Any, error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("libra").critical("Unhandled error.", exc_info=(kind, error, trace))


def _log_thread(failed: "threading.ExceptHookArgs") -> None:
    if failed.exc_value is not None and not issubclass(failed.exc_type, SystemExit):
        logging.getLogger("libra").critical(
            "Unhandled error in thread %s.",
            failed.thread.name if failed.thread else "?",
            exc_info=(failed.exc_type, failed.exc_value, failed.exc_traceback),
        )
