"""Access tokens: made once, kept as hashes, in a file that is read with suspicion."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.balancer import __main__ as command
from libra.balancer.access_principal import RefusedError
from libra.balancer.access_rules import Scope
from libra.balancer.tokens import TokenSet, decode_tokens, encode_tokens, new_token
from libra.balancer.tokens_file import WatchedTokens, read_tokens
from tests.guarded import token_file
from tests.running import ROOT, wait_for

NOW_S = 2e9


def reason_of(tokens: TokenSet, text: str, now_s: float = NOW_S) -> str:
    """Return why a text is no token, of which nothing is said but that."""
    with pytest.raises(RefusedError) as refused:
        tokens.identify(text, now_s)
    assert refused.value.status == 401
    assert len(text) < 20 or text[15:] not in str(refused.value)
    return refused.value.reason


def test_a_token_is_who_it_was_made_for() -> None:
    """It names its scope and job, and what is kept of it does not contain it."""
    text, token = new_token("report", job="team-*", note="a note")
    kept = encode_tokens([token])
    principal = decode_tokens(kept).identify(text, NOW_S)

    assert (principal.scope, principal.job) == ("report", "team-*")
    assert principal.name == f"token:{token.id}"
    assert text.split("_")[2].encode() not in kept
    assert len(text) == 66


@given(st.integers(0, 65), st.sampled_from("aZ0_ \x00é"))
def test_any_other_text_is_nobodys(place: int, character: str) -> None:
    """One changed character, wherever it is, and a token is worth nothing."""
    text, token = new_token("admin")
    changed = text[:place] + character + text[place + 1 :]
    if changed != text:
        assert reason_of(TokenSet([token]), changed) in ("malformed", "unknown")
    assert reason_of(TokenSet([token]), text[:place]) == "malformed"


def test_a_token_ends_when_it_was_told_to() -> None:
    """To the second; and a token that was taken out of the set is not known."""
    text, token = new_token("read", expires=datetime.fromtimestamp(NOW_S, UTC))

    assert TokenSet([token]).identify(text, NOW_S - 0.001).scope == "read"
    assert reason_of(TokenSet([token]), text) == "expired"
    assert reason_of(TokenSet(), text) == "unknown"


@pytest.mark.parametrize(
    ("scope", "job"), [("report", ""), ("read", "a"), ("report", "a/b"), ("report", "*a")]
)
def test_tokens_that_cannot_be(scope: str, job: str) -> None:
    """Only the scope report is bound to a job, and always: to a name, or its beginning."""
    with pytest.raises(ValueError, match=r"job=.*must"):
        new_token(cast(Scope, scope), job=job)


LINE = encode_tokens([new_token("read")[1]])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (LINE + b"{", "line 2"),
        (LINE + LINE, "there twice"),
        (LINE.replace(b'"read"', b'"root"'), "line 1"),
        (LINE.replace(b'"sha256":"', b'"sha256":"0'), "line 1"),
        (LINE.replace(b"{", b'{"secret":"x",'), "line 1"),
        (LINE.replace(b'"read"', b'"report"'), "job="),
        (b"\xff\n", "line 1"),
    ],
)
def test_a_bad_file_is_refused_as_a_whole(tmp_path: Path, body: bytes, text: str) -> None:
    """One line of why, which names the file and the line."""
    path = tmp_path / "tokens"
    path.write_bytes(body)
    path.chmod(0o600)

    with pytest.raises(ValueError, match=text) as refused:
        read_tokens(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o660])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    """The message says how to close it."""
    file = token_file(tmp_path / "tokens")
    if os.geteuid() == 0:
        os.chown(file.path, 0, 12345)
    file.path.chmod(mode)

    with pytest.raises(ValueError, match="chmod 600"):
        read_tokens(file.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to root")
@pytest.mark.parametrize(
    ("owner", "mode", "good"),
    [
        *((0, 0o440, True), (0, 0o640, True), (0, 0o400, False)),
        *((0, 0o460, False), (0, 0o444, False), (0, 0o450, False), (65534, 0o440, False)),
    ],
)
def test_a_secret_of_root_may_be_read_by_our_group(owner: int, mode: int, good: bool) -> None:
    """As Kubernetes mounts one with fsGroup: read only, for the process's own group alone."""
    with TemporaryDirectory() as folder:
        # Those of pytest are closed to everyone else.
        os.chmod(folder, 0o755)
        file = token_file(Path(folder) / "tokens")
        os.chown(file.path, owner, 12345)
        file.path.chmod(mode)

        assert can_read(file.path, 12345) == good
        assert not can_read(file.path, 54321)


def can_read(path: Path, group: int) -> bool:
    """Tell whether a process of nobody in this group takes the file for good."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([group])
            os.setgid(65534)
            os.setuid(65534)
            read_tokens(path)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def test_a_file_of_someone_else_is_refused(tmp_path: Path) -> None:
    """Who owns the file could make tokens; a pipe, a folder or nothing is no file."""
    file = token_file(tmp_path / "tokens")
    if os.geteuid() == 0:
        os.chown(file.path, 12345, -1)
        with pytest.raises(ValueError, match="belongs to user 12345"):
            read_tokens(file.path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("pipe", ".", "missing"):
        with pytest.raises(ValueError, match=r"must be a file|cannot be read"):
            read_tokens(tmp_path / name)


def test_the_running_balancer_keeps_the_last_good_set(tmp_path: Path) -> None:
    """A file that became invalid is named and counted, and taken up again once it is right."""
    file = token_file(tmp_path / "tokens")
    watched = WatchedTokens(file.path)
    watched.start()
    good = file.path.read_bytes()

    file.path.write_bytes(good + b"nonsense")
    assert "line 4" in wait_for(lambda: watched.fault)
    assert watched.current.identify(file.texts["read"], time.time()).scope == "read"
    assert watched.faults == 1
    file.path.unlink()
    wait_for(lambda: watched.faults == 2)
    file.path.write_bytes(good)
    file.path.chmod(0o600)
    wait_for(lambda: watched.fault is None)
    file.revoke("read")
    wait_for(lambda: len(watched.current.tokens) == 2)
    watched.close()


def libra_token(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "libra.balancer", "token", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        umask=0,
    )


def test_the_command_makes_lists_and_revokes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret is printed once and alone on its line, the file is closed to others, the list
    never shows a secret, and a revoked token is gone.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LIBRA_TOKENS", raising=False)
    path = tmp_path / "libra" / "tokens.jsonl"
    made = libra_token("new", "--scope", "report", "--job", "run-*", "--expires", "30d")
    libra_token("new", "--scope", "admin", "--note", "ops\x1b[31m")
    listed = libra_token("list").stdout
    principal = read_tokens(path).identify(made.stdout.strip(), time.time())
    id_ = principal.name.removeprefix("token:")
    revoked = libra_token("revoke", id_)
    again = libra_token("revoke", id_)

    assert principal.job == "run-*"
    assert 29 * 86_400 < principal.expires_s - time.time() < 31 * 86_400
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    assert id_ in listed
    assert "run-*" in listed
    assert "\x1b" not in listed
    assert made.stdout.strip()[15:] not in listed + made.stderr + path.read_text()
    assert (revoked.returncode, again.returncode) == (0, 1)
    assert len(again.stderr.splitlines()) == 1
    assert len(read_tokens(path).tokens) == 1


def test_commands_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Eight tokens made at once are all in the file; no half-written file is left."""
    path = tmp_path / "tokens"
    arguments = ["token", "new", "--scope", "read", "--file", str(path)]
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: command.main(arguments), range(8))) == {0}

    assert len(read_tokens(path).tokens) == 8
    assert {entry.name for entry in tmp_path.iterdir()} == {"tokens", "tokens.lock"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["new", "--scope", "report"],
        ["new", "--scope", "read", "--expires", "soon"],
        ["new", "--scope", "read", "--expires", "0d"],
        ["revoke", "nothing0"],
        ["list"],
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Status 1 and why; no file is made for it."""
    assert command.main(["token", *arguments, "--file", str(tmp_path / "t")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "t").exists()
