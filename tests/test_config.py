"""Settings: which source wins, what is refused and how, and that what is printed reads back."""

import argparse
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.balancer import __main__ as command
from libra.balancer.config import Loaded, add_options, load
from libra.balancer.config_fields import declared
from libra.balancer.config_print import print_config
from libra.balancer.config_values import from_text, from_toml, masked, to_toml
from libra.balancer.settings import ServeSettings

TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.one_of(
    TEXTS,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.lists(TEXTS).map(tuple),
)


def parse(*arguments: str) -> dict[str, Any]:
    """Return what the command line makes of arguments."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return vars(parser.parse_args(arguments))


def write(folder: Path, text: str) -> str:
    path = folder / "libra.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("flag", [None, "1"])
@pytest.mark.parametrize("variable", [None, "2"])
@pytest.mark.parametrize("file", [None, "3"])
def test_a_flag_goes_before_a_variable_and_that_before_the_file(
    tmp_path: Path, flag: str | None, variable: str | None, file: str | None
) -> None:
    """The strongest source that is given decides, and what is set in none has its default."""
    path = write(tmp_path, f"port = {file}\n" if file else "")
    environ = {"LIBRA_CONFIG": path} | ({"LIBRA_PORT": variable} if variable else {})
    arguments = ["--port", flag] if flag else []

    loaded = load(parse(*arguments), environ)

    assert loaded.settings.listen.port == int(flag or variable or file or 8765)
    origins = [(flag, "--port"), (variable, "LIBRA_PORT"), (file, path)]
    origin = next((name for given, name in origins if given), None)
    assert loaded.origins.get("port") == origin


@pytest.mark.parametrize("setting", declared().values(), ids=lambda setting: str(setting.name))
def test_every_setting_can_be_set_in_every_way(tmp_path: Path, setting: Any) -> None:
    """Flag, variable and line of the file mean the same, for each setting there is."""
    kept = getattr(getattr(ServeSettings(), setting.group), setting.name)
    made = _OWN.get(setting.name, kept or from_text(setting.kind, "1"))
    others = {declared()[name]: _OWN[name] for name in _TOGETHER.get(setting.name, ())}
    wanted = {setting: made, **others}

    def taken(loaded: Loaded) -> Any:
        value = getattr(getattr(loaded.settings, setting.group), setting.name)
        return value, loaded.origins.get(setting.name)

    flags = [part for each, value in wanted.items() for part in as_flags(each.flag, value)]
    variables = {each.variable: as_text(value) for each, value in wanted.items()}
    lines = [f"{each.name} = {to_toml(value)}\n" for each, value in wanted.items()]
    path = write(tmp_path, "".join(lines))

    assert taken(load(parse(*flags), {})) == (made, setting.flag)
    assert taken(load({}, variables)) == (made, setting.variable)
    assert taken(load({"config": path}, {})) == (made, path)
    assert taken(load(parse(), {})) == (kept, None)


def as_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def as_flags(flag: str, value: Any) -> list[str]:
    return [flag] if value is True else [flag, as_text(value)]


# Of settings that are empty by default, those for which a 1 is not allowed, and what they need.
_OWN: dict[str, Any] = {
    "root_path": "/libra",
    "forwarded_allow_ips": ("10.0.0.0/8", "::1"),
    "tls_cert": "cert.pem",
    "tls_key": "key.pem",
    "tls_client_ca": "authority.pem",
    "tls_clients": ("admin:ops", "report:node-*=job-*"),
    "oidc_issuer": "https://issuer.example",
    "oidc_audience": "libra",
    "oidc_scopes": ("read:ops/*", "report:team/*"),
}
_TLS = {"tls_cert", "tls_key"}
_CLIENTS = _TLS | {"tls_client_ca", "tls_clients"}
_ISSUER = {"oidc_issuer", "oidc_audience", "oidc_scopes"}
_TOGETHER = {name: sorted(names - {name}) for names in (_CLIENTS, _TLS, _ISSUER) for name in names}


@pytest.mark.parametrize(
    ("flags", "environ", "file", "message"),
    [
        ([], {"LIBRA_PORT": "x"}, "", "LIBRA_PORT=x: must be an integer"),
        ([], {"LIBRA_PORT": "70000"}, "", "LIBRA_PORT=70000: must be in 0..65535"),
        (["--port", "x"], {}, "", "--port=x: must be an integer"),
        (["--port", "-1"], {}, "", "--port=-1: must be in 0..65535"),
        (["--keep-days", "nan"], {}, "", "--keep-days=nan: must be a number"),
        (["--keep-days", "0"], {}, "", "--keep-days=0.0: must be positive"),
        (["--mode", "loud"], {}, "", "--mode=loud: must be one of observe, adapt, frozen"),
        (["--root-path", "/a/"], {}, "", "--root-path='/a/': must be like /libra"),
        (["--root-path", "/api/b"], {}, "", "--root-path='/api/b': must not begin with one of"),
        (["--forwarded-allow-ips", "me"], {}, "", "--forwarded-allow-ips='me': must be an"),
        ([], {"LIBRA_INSECURE_NO_AUTH": "perhaps"}, "", "=perhaps: must be true or false"),
        ([], {}, "port = 'x'", "libra.toml: port='x': must be an integer"),
        ([], {}, "port = true", "libra.toml: port=True: must be an integer"),
        ([], {}, "keep_days = inf", "libra.toml: keep_days=inf: must be a finite number"),
        ([], {}, "forwarded_allow_ips = '*'", "must be an array"),
        ([], {}, "job = 1", "libra.toml: job=1: must be a table, [job]"),
        ([], {}, "[job]\nhalf_life_steps = 'long'", "[job] half_life_steps='long': must be a nu"),
        ([], {}, "[job]\nhalf_life_steps = -1", "[job] half_life_steps=-1.0: must be positive"),
        ([], {}, "[job.decide.trial]\nlooks = [3, 2]", "[job.decide.trial] looks=(3, 2): must be"),
        ([], {}, "port =", "libra.toml': cannot be read"),
    ],
)
def test_a_wrong_value_is_named_with_its_source(
    tmp_path: Path, flags: list[str], environ: dict[str, str], file: str, message: str
) -> None:
    """Whoever set it wrongly is told where, what, and what is allowed."""
    arguments = parse(*flags) | {"config": write(tmp_path, file)}

    with pytest.raises(ValueError, match=r"must (not )?be|cannot be") as raised:
        load(arguments, environ)

    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "file", "meant"),
    [
        ({"LIBRA_PROT": "1"}, "", "LIBRA_PORT"),
        ({"LIBRA_FLUSH_INTERVAL": "1"}, "", "LIBRA_FLUSH_INTERVAL_S"),
        ({}, "kepp_days = 1", "keep_days"),
        ({}, "[job]\nhalflife_steps = 1", "half_life_steps"),
        ({}, "[job.decide]\nmin_gains = 1", "min_gain"),
        ({}, "completely_else = 1", "must be one of"),
    ],
)
def test_a_misspelt_setting_is_refused(
    tmp_path: Path, environ: dict[str, str], file: str, meant: str
) -> None:
    """A setting that would be ignored in silence is an error that names the nearest one."""
    with pytest.raises(ValueError, match="there is no such setting") as raised:
        load({"config": write(tmp_path, file)}, environ)

    assert meant in str(raised.value)


def test_variables_of_others_are_left_alone() -> None:
    """Agents' variables, an empty one, and what Kubernetes tells of a service called libra."""
    environ = {
        "LIBRA_BALANCER": "http://b:1",
        "LIBRA_JOB": "j",
        "LIBRA_TOKEN_FILE": "/t",
        "LIBRA_PORT": "tcp://10.0.0.1:8765",
        "LIBRA_SERVICE_HOST": "10.0.0.1",
        "LIBRA_SERVICE_PORT_HTTP": "8765",
        "LIBRA_PORT_8765_TCP_ADDR": "10.0.0.1",
        "LIBRA_HOST": "",
    }

    assert load({}, environ).settings == ServeSettings()


def test_how_jobs_are_judged_is_set_by_tables_of_the_file(tmp_path: Path) -> None:
    """[job] and the tables below it reach the settings that they are named after."""
    path = write(
        tmp_path,
        "[job]\nfinished_after_s = 60\n[job.decide]\nmin_gain = 0.5\n[job.decide.trial]\n"
        "looks = [3, 4]\n",
    )

    job = load({"config": path}, {}).settings.service.job

    assert (job.finished_after_s, job.decide.min_gain, job.decide.trial.looks) == (
        60.0,
        0.5,
        (3, 4),
    )
    assert job.stale_after_s == 30.0


@given(value=VALUES)
def test_what_is_written_as_toml_reads_back(value: Any) -> None:
    """Any value of any kind survives being printed."""
    kind = tuple[str, ...] if isinstance(value, tuple) else type(value)

    assert from_toml(kind, tomllib.loads(f"x = {to_toml(value)}")["x"]) == value


@given(
    port=st.integers(0, 65535), path=st.text("ab/\"'\\#\n\té", min_size=1), no_auth=st.booleans()
)
def test_the_printed_settings_read_back(
    tmp_path_factory: pytest.TempPathFactory, port: int, path: str, no_auth: bool
) -> None:
    """What --print-config prints is a file that gives the same settings."""
    flags = {"port": str(port), "store": path, "insecure_no_auth": no_auth}
    loaded = load(flags, {"LIBRA_FORWARDED_ALLOW_IPS": "10.0.0.0/8,::1", "LIBRA_MODE": "adapt"})
    again = write(tmp_path_factory.mktemp("c"), print_config(loaded))

    assert load({"config": again}, {}).settings == loaded.settings


def test_print_config_says_where_each_value_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints and stops; a password is masked, and its line does not set anything."""
    path = write(tmp_path, "keep_days = 3\n[job]\nstale_after_s = 5\n")
    monkeypatch.setenv("LIBRA_STORE", "postgresql://me:se/cr@et@db/libra?password=hush")

    assert command.main(["serve", "--config", path, "--port", "7", "--print-config"]) == 0

    printed = capsys.readouterr().out
    assert "port = 7  # --port\n" in printed
    assert f"keep_days = 3.0  # {path}\n" in printed
    assert 'host = "127.0.0.1"  # default\n' in printed
    assert f"[job]  # {path}\n" in printed
    assert '# store = "postgresql://me:***@db/libra?password=***"  # LIBRA_STORE\n' in printed
    assert "cr@et" not in printed
    assert "hush" not in printed
    assert "store" not in tomllib.loads(printed)


@pytest.mark.parametrize(
    ("value", "secret", "shown"),
    [
        ("/var/lib/libra.sqlite", False, "/var/lib/libra.sqlite"),
        ("postgresql://db/libra", False, "postgresql://db/libra"),
        ("postgresql://u:p@db/libra", False, "postgresql://u:***@db/libra"),
        ("https://issuer:8443/keys", False, "https://issuer:8443/keys"),
        ("anything", True, "***"),
        ("", True, ""),
        (("a", "x://u:p@h"), False, ("a", "x://u:***@h")),
    ],
)
def test_secrets_are_masked(value: Any, secret: bool, shown: Any) -> None:
    """A secret is never shown, and of a URL only its password is left out."""
    assert masked(value, secret=secret) == shown
