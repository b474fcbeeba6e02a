"""A real nginx before a balancer, with a configuration that the test writes."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running import wait_for

NEEDS_NGINX = pytest.mark.skipif(
    shutil.which("nginx") is None and "CI" not in os.environ, reason="nginx is not installed"
)

# Of the location, nothing but the address is told: what nginx does by itself must be right.
_CONFIG = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location /libra/ {{
            proxy_pass {target};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_nginx(folder: Path, balancer_url: str, *, strips: bool) -> Iterator[str]:
    """Serve a balancer below ``/libra/``; give the address. ``strips`` takes the prefix off."""
    port = free_port()
    # With a path, even a bare slash, nginx puts that in the location's place.
    target = f"{balancer_url}/" if strips else balancer_url
    user = "user root;" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, port=port, target=target, user=user))
    command = ["nginx", "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]
    with subprocess.Popen(command) as process:
        try:
            wait_for(lambda: _answers(port), 30)
            yield f"http://127.0.0.1:{port}/libra"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
