"""Ten thousand agents that wait for a policy: what each costs, and when the last one has it.

.venv/bin/python benchmarks/long_poll.py
.venv/bin/python benchmarks/long_poll.py --quick
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil

# Found from the repository's root, as the other benchmarks' modules are.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import machine
from benchmarks.raw_clients import allow_files, clients, read_each
from benchmarks.tables import Row, table
from tests.running import RunningBalancer, make_report, running_balancer, wait_for

_JOB = "polled"
_TIMEOUT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few agents")
    add("--clients", type=int, default=10_000)
    add("--rounds", type=int, default=3, help="policies published")
    args = parser.parse_args()
    number = 200 if args.quick else args.clients
    allow_files(number)
    print(machine("uvicorn", "uvloop", "httptools"))
    print(table(measure(number, args.rounds)))


def measure(number: int, rounds: int) -> list[Row]:
    """Return a row for each policy that is published to so many waiting agents."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_balancer(Path(folder) / "store.sqlite") as balancer,
    ):
        assert balancer.send(make_report(_JOB)).status_code == 202
        return [_round(balancer, number) for _ in range(rounds)]


def _round(balancer: RunningBalancer, number: int) -> Row:
    process = psutil.Process(balancer.process.pid)
    path = f"/api/v1/jobs/{_JOB}/policy"
    etag = balancer.client.get(path).headers["etag"]
    before, used = process.memory_info().rss, process.cpu_times()
    known = f"If-None-Match: {etag}\r\n"
    with clients(balancer.url, f"{path}?wait=60", number, known) as opened:
        wait_for(lambda: _polls(balancer) == number)
        waiting, spent = process.memory_info().rss, process.cpu_times()
        start = time.perf_counter()
        published = balancer.client.post(
            f"/api/v1/jobs/{_JOB}/publish", json={"pooling": True, "reason": "a benchmark"}
        )
        acknowledged = time.perf_counter()
        assert published.status_code == 200, published.text
        etag = f'etag: "{published.json()["checksum"]}"'.encode()
        times = read_each(opened, lambda got: etag in got and got.endswith(b"}"), _TIMEOUT_S)
        done = process.cpu_times()
    return {
        "agents": number,
        "KiB each": round((waiting - before) / 1024 / number, 1),
        "publish, ms": round(1e3 * (acknowledged - start), 1),
        "half have it after, s": round(sorted(times)[len(times) // 2] - start, 3),
        "all have it after, s": round(max(times) - start, 3),
        "have it": len(times),
        "CPU to ask, s": round(spent.user + spent.system - used.user - used.system, 2),
        "CPU to tell, s": round(done.user + done.system - spent.user - spent.system, 2),
    }


def _polls(balancer: RunningBalancer) -> int:
    page = balancer.client.get("/metrics").text
    return int(float(page.partition("\nlibra_policy_polls ")[2].split()[0]))


if __name__ == "__main__":
    main()
