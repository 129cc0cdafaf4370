"""What a new user gets wrong, without a stack: the answer says what happened and what to do."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from apps.cli import main
from apps.cli.events import expected_version
from apps.cli.stack import chosen_parts
from apps.cli.subscription import start_of
from cdc.option_texts import keys_of
from delivery.event_ranges import token_of
from kernel.errors import (
    EXIT_FAILED,
    EXIT_NEEDS_CONFIRMATION,
    EXIT_UNHEALTHY,
    EXIT_USAGE,
    ContractViolation,
)
from kernel.positions import position_of
from tests.docs.cli_reference import leaves

GENERIC = ContractViolation.remedy
"""Says that the call is wrong, and not what to write."""
PYTHON = ("Traceback", "Errno", "None", "\x1b", "<class", "list[")

MISTAKES = [
    ("append order-1 --file absent", EXIT_USAGE, "absent cannot be opened: No such file"),
    ("stream import absent", EXIT_USAGE, "absent cannot be opened: No such file"),
    ("schema add order.placed absent", EXIT_USAGE, "absent cannot be read: No such file"),
    ("projection apply absent.sql", EXIT_USAGE, "absent.sql cannot be read: No such file"),
    ("append order-1 placed {bad", EXIT_USAGE, "DATA is not JSON"),
    ("append order-1", EXIT_USAGE, "no event was given"),
    ("command account 1 open --data [1]", EXIT_USAGE, "expected a JSON object"),
    ("read order-1", EXIT_UNHEALTHY, "does not answer: Connection refused"),
    ("read --limit many", EXIT_USAGE, "expected a whole number, found 'many'"),
    ("read --limit 0", EXIT_USAGE, "expected 1 or more, found 0"),
    ("read --limt 3", EXIT_USAGE, "Did you mean: penstock read --limit NUMBER"),
    ("wait --timeout soon", EXIT_USAGE, "expected a number, found 'soon'"),
    ("raed", EXIT_USAGE, "Did you mean: penstock read"),
    ("stream shwo order-1", EXIT_USAGE, "Did you mean: penstock stream show"),
    ("schema add a.b f --compatibility wide", EXIT_USAGE, "expected one of NONE, BACKWARD"),
    ("stream archive --before 3", EXIT_USAGE, "--before is about one stream"),
    ("subscription create audit --start now", EXIT_USAGE, "is no position"),
    ("table list", EXIT_FAILED, "there is no lake"),
    ("logs nothing", EXIT_FAILED, "no log of 'nothing'"),
    ("query 'select 1'", EXIT_FAILED, "there is no lake"),
    ("epoch list", EXIT_FAILED, "there is no lake"),
    ("quarantine list", EXIT_FAILED, "there is no lake"),
    ("append", EXIT_USAGE, "STREAM is missing: category-id, as order-1042"),
    ("append order-1 placed [1]", EXIT_USAGE, "DATA is not a JSON object"),
    ("append order-1 placed 12", EXIT_USAGE, "DATA is not a JSON object"),
    ("append order-1 placed {} more", EXIT_USAGE, "nothing takes 'more'"),
    ("append order-1 placed {} --expect foo", EXIT_USAGE, "neither a version nor one of any"),
    ("append order-1 placed {} --expect -1", EXIT_USAGE, "neither a version nor one of any"),
    ("append order-1 placed {} --expect 99999999999999999999", EXIT_USAGE, "at most 64 bits"),
    ("subscription create x --start 99999999999999999999", EXIT_USAGE, "at most 64 bits"),
    ('append order-1 placed \'{"a": 1, "a": 2}\'', EXIT_USAGE, "DATA: the key 'a' occurs twice"),
    ('command a 1 open --data \'{"a": 1, "a": 2}\'', EXIT_USAGE, "--data: the key 'a' occurs"),
    ("command account 1 open --key заказ-7", EXIT_USAGE, "'заказ-7' is not printable ASCII"),
    ("append order-1 placed {} --id 12", EXIT_USAGE, "--id '12' is no UUID"),
    (
        "append order-1 placed {} --id 0190a2c47d6e7b3a_f005b1d2c3e4f50",
        EXIT_USAGE,
        "--id '0190a2c47d6e7b3a_f005b1d2c3e4f50' is no UUID",
    ),
    ("append order-1 --file .", EXIT_USAGE, ". cannot be opened: Is a directory"),
    ("read --after -1", EXIT_USAGE, "expected 0 or more, found -1"),
    ("read --after x", EXIT_USAGE, "expected a whole number, found 'x'"),
    ("read order-1 --from-version -2", EXIT_USAGE, "expected 0 or more, found -2"),
    ("tail --limit x", EXIT_USAGE, "expected a whole number, found 'x'"),
    ("stream archive --batch 0", EXIT_USAGE, "expected 1 or more, found 0"),
    ("stream export order-1 --file no/x", EXIT_USAGE, "no/x cannot be opened: No such file"),
    ("stream import .", EXIT_USAGE, ". cannot be opened: Is a directory"),
    ("entity account", EXIT_USAGE, "penstock entity CATEGORY ID"),
    ("entity account 1 --at soon", EXIT_USAGE, "'soon' is not a time"),
    ("command account 1 open --expect x", EXIT_USAGE, "expected a whole number, found 'x'"),
    ("projection apply", EXIT_USAGE, "FILE.sql… is missing"),
    ("projection apply .", EXIT_USAGE, "Name a file that you may read, with SQL in UTF-8"),
    ("projection pause nope", EXIT_FAILED, "no projection nope; there are: none"),
    ("replay events", EXIT_USAGE, "--to is missing: topic:NAME, store:URL"),
    ("replay events --to t", EXIT_USAGE, "--to 't' is no topic, store or lake"),
    ("replay events --to store:postgresql://x", EXIT_USAGE, "wants the address of the store's"),
    ("replay events --to topic:t --shift 3", EXIT_USAGE, "--shift '3' is no span"),
    ("replay events --to topic:t --rate 0", EXIT_USAGE, "--rate '0' is not a number above zero"),
    ("replay events --to topic:t --speed fast", EXIT_USAGE, "--speed 'fast' is not a number above"),
    ("replay events --to topic:t --rate 1 --speed 2x", EXIT_USAGE, "exclude each other"),
    ("replay events --to topic:t --max-gap 5s", EXIT_USAGE, "about the gaps that --speed keeps"),
    ("replay events --to topic:t --speed 2 --max-gap -5s", EXIT_USAGE, "--max-gap is below zero"),
    ("replay events --to topic:t --shift 1d --starting 2030-01-01", EXIT_USAGE, "exclude each"),
    ("replay events --to topic:t --starting soon", EXIT_USAGE, "'soon' is not a time"),
    ("replay events --to topic:t --from 0", EXIT_USAGE, "positions begin with 1"),
    ("replay events --to topic:t --until x", EXIT_USAGE, "'x' is not a time"),
    (
        "replay events --to topic:t --token-file x",
        EXIT_USAGE,
        "--token-file is about another store",
    ),
    (
        "replay events --to store:http://x --partitions 2",
        EXIT_USAGE,
        "--partitions is about a topic",
    ),
    ("replay events --to store:http://x --token-file x", EXIT_USAGE, "x cannot be read: No such"),
    (
        "replay events --to store:https://192.0.2.1:7170",
        EXIT_USAGE,
        "fix: Give the other store's own token: --token-file",
    ),
    ("replay events --to store:http://kim:secret@127.0.0.1", EXIT_USAGE, "names a user"),
    ("replay events --to http://kim:secret@127.0.0.1", EXIT_USAGE, "is no topic, store or lake"),
    ("replay events --to store:http://[::1", EXIT_USAGE, "is no address of a service"),
    ("replay events --to store:http://[::1]:7170", EXIT_FAILED, "there is no lake"),
    ("replay events --to topic:t", EXIT_FAILED, "there is no lake"),
    ("replay events --to store:http://127.0.0.1:99999", EXIT_USAGE, "is no address of a service"),
    ("replay events --to topic:t --partitions 99999999999", EXIT_USAGE, "expected 10000 or less"),
    ("replay events --to topic:t --from 9223372036854775808", EXIT_USAGE, "have at most 64 bits"),
    ("replay events --to topic:t --from 0001-01-01T00:00+14:00", EXIT_USAGE, "the years 1 to 9999"),
    (
        "replay events --to topic:t --until 9999-12-31T23:00-02:00",
        EXIT_USAGE,
        "the years 1 to 9999",
    ),
    ("replay events --to topic:t --stream order-\udcff", EXIT_USAGE, "is not UTF-8"),
    ("replay plan 'a.\"b'", EXIT_FAILED, 'no projection a."b; there are: none'),
    ("replay apply nope", EXIT_FAILED, "no projection nope; there are: none"),
    ("source status nope", EXIT_FAILED, "no source nope; there are: none"),
    ("source add shop", EXIT_USAGE, "fix: penstock source add NAME --dsn TEXT --tables TEXT"),
    ("quarantine list -n 0", EXIT_USAGE, "expected 1 or more, found 0"),
    ("epoch list -n -1", EXIT_USAGE, "expected 1 or more, found -1"),
    ("demo --flights 0", EXIT_USAGE, "expected 1000 or more, found 0"),
    ("trace nope", EXIT_USAGE, "'nope' is no event id"),
    ("restart postgres", EXIT_UNHEALTHY, "no stack runs here"),
    ("down -w nowhere", EXIT_FAILED, "there is no folder"),
    ("status -w nowhere", EXIT_FAILED, "there is no folder"),
    ("logs -w nowhere", EXIT_FAILED, "there is no folder"),
    ("reset -w nowhere", EXIT_FAILED, "there is no folder"),
    ("read -w nowhere", EXIT_FAILED, "there is no folder"),
    ("token -w nowhere", EXIT_FAILED, "there is no folder"),
    ("read order-1 --after 3", EXIT_USAGE, "--after is about all events, and order-1 was named"),
    ("read order-1 --tag a", EXIT_USAGE, "--tag is about all events, and order-1 was named"),
    ("read --backward", EXIT_USAGE, "--backward is about one stream, and none was named"),
    ("read --from-version 2", EXIT_USAGE, "penstock read order-1 --from-version"),
    ("replay verify nope", EXIT_FAILED, "no projection nope; there are: none"),
    ("replay swap nope", EXIT_FAILED, "no projection nope; there are: none"),
    ("replay rollback nope", EXIT_FAILED, "no projection nope; there are: none"),
    ("replay cancel nope", EXIT_FAILED, "no projection nope; there are: none"),
    ("replay status nope", EXIT_FAILED, "no projection nope; there are: none"),
    ("projection drop nope", EXIT_FAILED, "no projection nope; there are: none"),
    ("source verify nope", EXIT_FAILED, "no source nope; there are: none"),
    ("source resnapshot nope", EXIT_FAILED, "no source nope; there are: none"),
    ("source remove nope", EXIT_FAILED, "no source nope; there are: none"),
    ("stream delete order-1", EXIT_UNHEALTHY, "does not answer: Connection refused"),
    ("up -w /proc/x", EXIT_FAILED, "cannot be written: No such file or directory"),
    ("up --only nothing", EXIT_USAGE, "no part 'nothing'"),
    ("up --only postgres,service", EXIT_USAGE, "service needs registry, which is not among"),
    ("up --without kafka", EXIT_USAGE, "pipeline needs kafka, which is not among"),
    ("up --only kafka --without kafka", EXIT_USAGE, "leave no part to start"),
    ("up --port-base 99999", EXIT_USAGE, "expected 65529 or less, found 99999"),
    ("up --port-base 0", EXIT_USAGE, "expected 1024 or more, found 0"),
    ("demo --port-base 65530", EXIT_USAGE, "expected 65529 or less"),
    ("stream archive order-1 --batch 9999", EXIT_USAGE, "expected 5000 or less, found 9999"),
    ("-w x status", EXIT_USAGE, "Options stand behind the command: penstock COMMAND -w"),
    ("--foo", EXIT_USAGE, "penstock has no option --foo"),
    ("sources list", EXIT_USAGE, "Did you mean: penstock source"),
    ("nothing at all", EXIT_USAGE, "penstock has no command 'nothing'"),
    ("table nothing", EXIT_USAGE, "There are: list, path, history, retry"),
    ("source list --limit 3", EXIT_USAGE, "See what it takes: penstock source list --help"),
    ("read --category", EXIT_USAGE, "fix: penstock read --category TEXT"),
    ("epoch show one", EXIT_USAGE, "fix: penstock epoch show EPOCH"),
    ("quarantine show t 0", EXIT_USAGE, "OFFSET is missing"),
    ("query select 1", EXIT_USAGE, "Text with blanks stands in quotes"),
    ("demo --lake ftp", EXIT_USAGE, "expected one of folder, s3, found 'ftp'"),
    ("append order-1 placed {} --file x", EXIT_USAGE, "--file brings types and ids of its own"),
    ("savepoint create No", EXIT_USAGE, "'No' is no name of a savepoint"),
    ("entity account 1 --at 2013-01-31T12:00:00z", EXIT_UNHEALTHY, "Connection refused"),
    ("wait --timeout nan", EXIT_USAGE, "expected a number, found 'nan'"),
    ("quarantine retry t --timeout inf", EXIT_USAGE, "expected a number, found 'inf'"),
    ("logs -n -1", EXIT_USAGE, "expected 0 or more, found -1"),
    ("query 'select 1' --epoch 9223372036854775808", EXIT_USAGE, "expected 9223372036854775807 or"),
    ("table history x -n 99999999999999999999", EXIT_USAGE, "expected 9223372036854775807 or less"),
]


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES, ids=[each[0] for each in MISTAKES])
def test_a_mistake_is_answered_in_words(
    words: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_SERVICE_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(sys, "argv", ["penstock", *shlex.split(words)])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capfd.readouterr()
    assert ended.value.code == code
    assert said in shown.err
    assert not shown.out
    assert "starting Spark" not in shown.err
    assert not [each for each in PYTHON if each in shown.err]
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n  fix: ") == 1, "cause first, then what to do"
    assert GENERIC not in shown.err
    assert "secret" not in shown.err
    assert not any(tmp_path.iterdir()), "a command that only asks leaves nothing behind"


def test_a_position_of_thousands_of_digits_is_refused_as_one_of_twenty() -> None:
    with pytest.raises(ContractViolation, match="at most 64 bits"):
        position_of("9" * 5000, "--from")
    for read in (expected_version, start_of):
        with pytest.raises(ContractViolation, match="at most 64 bits"):
            read("9" * 5000)
    assert (position_of("9223372036854775807", "--from"), position_of("-1", "--from")) == (
        2**63 - 1,
        None,
    )


@pytest.mark.parametrize("text", ["", " \n", "two\nlines", "clé"])
def test_a_file_without_a_token_that_a_call_can_carry_is_refused(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text(text, encoding="utf-8")
    with pytest.raises(ContractViolation, match="holds no token"):
        token_of(file)
    file.write_text("t0ken\n", encoding="utf-8")
    assert token_of(file) == "t0ken"


def test_an_address_without_its_scheme_is_answered_with_the_whole_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVICE_URL", "localhost:9000")
    monkeypatch.setattr(sys, "argv", ["penstock", "read"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EXIT_FAILED
    assert "PENSTOCK_SERVICE_URL=http://localhost:9000" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "code", "said"),
    [
        ("URL", "http://[::1", EXIT_FAILED, "is no address"),
        ("URL", "http://127.0.0.1:99999", EXIT_FAILED, "is no address"),
        ("URL", "http://exa mple", EXIT_FAILED, "is no address"),
        ("URL", f"http://{'a' * 70}.x", EXIT_UNHEALTHY, "does not answer"),
        ("TOKEN", "a\nb", EXIT_FAILED, "service.token has a character"),
        ("TOKEN", " Жетон\n", EXIT_UNHEALTHY, "Connection refused"),
        ("LAKE_PATH", "x", EXIT_USAGE, "'order-\\xff' is not UTF-8"),
    ],
)
def test_what_the_environment_says_is_answered_in_words(
    name: str,
    value: str,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVICE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv(f"PENSTOCK_{'SERVICE_' if name == 'URL' else ''}{name}", value)
    stream = "order-\udcff" if name == "LAKE_PATH" else "order-1"
    monkeypatch.setattr(sys, "argv", ["penstock", "stream", "show", stream])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capfd.readouterr().err
    assert ended.value.code == code
    assert said in shown
    assert not [each for each in PYTHON if each in shown]


def test_wrong_usage_is_one_document_with_json(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", "read", "--limt", "3", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EXIT_USAGE
    told = json.loads(capfd.readouterr().err)
    assert told["message"] == "penstock read has no option --limt"
    assert told["remedy"] == "Did you mean: penstock read --limit NUMBER"


def calls_with(bad: str) -> list[list[str]]:
    """Return a call of every command with something behind it that none takes."""
    return [[*name.removeprefix("penstock ").split(), bad] for name, _ in leaves()]


@pytest.mark.parametrize("bad", ["--no-such-option", "--json=3"])
def test_every_command_answers_wrong_usage_in_the_same_form(
    bad: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for call in calls_with(bad):
        monkeypatch.setattr(sys, "argv", ["penstock", *call])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capfd.readouterr()
        assert (ended.value.code, shown.out) == (EXIT_USAGE, ""), call
        if "--json" not in bad:
            assert shown.err.startswith("error: penstock "), call
            assert "\n  fix: " in shown.err, call


@pytest.mark.parametrize("words", ["", "stream", "epoch", "replay"])
def test_a_group_without_a_command_shows_its_help(
    words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", *shlex.split(words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EXIT_USAGE
    assert "Commands:" in capfd.readouterr().err


def test_parts_stand_behind_commas_with_and_without_blanks() -> None:
    assert chosen_parts("postgres, kafka", None) == ("postgres", "kafka")
    assert chosen_parts("postgres,kafka", " kafka") == ("postgres",)


def test_a_key_may_be_told_column_by_column() -> None:
    assert keys_of(["visits:visitor", "public.visits: at"]) == {"public.visits": ("visitor", "at")}
    with pytest.raises(ContractViolation, match="is not TABLE:COLUMN"):
        keys_of(["visits:visitor,"])


def called(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from apps.cli import main; main()"
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        ["bash", "-c", *words, sys.executable, "-Pc", code, root],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ('"$0" "$@" config show service.port > /dev/full', EXIT_UNHEALTHY, "No space left"),
        ('"$0" "$@" config show > /dev/full', EXIT_UNHEALTHY, "No space left"),
        ('exec 3> >(true); wait $!; "$0" "$@" config show >&3', EXIT_FAILED, ""),
        ('cd "$(mktemp -d)"; rmdir "$PWD"; exec "$0" "$@" status', EXIT_FAILED, "leads nowhere"),
        (
            'cd "$(mktemp -d)"; ln -s x x; exec "$0" "$@" status -w x',
            EXIT_FAILED,
            "leads nowhere",
        ),
        (
            'cd "$(mktemp -d)"; mkdir .penstock; echo -n > .penstock/endpoints.json; exec "$0" "$@"'
            " status",
            EXIT_UNHEALTHY,
            "",
        ),
        (
            'cd "$(mktemp -d)"; mkdir .penstock; echo -n [ > .penstock/state.json; exec "$0" "$@"'
            " status",
            EXIT_UNHEALTHY,
            "",
        ),
        (
            'cd "$(mktemp -d)"; printf "[x]\\ny = 1\\n" > penstock.toml; exec "$0" "$@" down',
            0,
            "",
        ),
        ('cd "$(mktemp -d)"; exec timeout 30 "$0" "$@" logs -f', 0, "there are no logs yet"),
        ('PYTHONIOENCODING=ascii exec "$0" "$@" init "$(mktemp -d)/ä1"', 0, ""),
    ],
)
def test_what_the_shell_does_to_a_command_is_answered_in_words(
    shell: str, code: int, said: str
) -> None:
    ran = called(shell)
    assert ran.returncode == code, ran.stderr
    assert said in ran.stderr
    assert not [each for each in (*PYTHON, "Exception") if each in ran.stderr]


def test_a_confirmation_repeats_the_whole_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With one word less it could remove another workspace."""
    monkeypatch.setattr(sys, "argv", ["penstock", "reset", "-w", str(tmp_path / "a b")])
    (tmp_path / "a b").mkdir()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EXIT_NEEDS_CONFIRMATION
    assert f"fix: penstock reset -w '{tmp_path}/a b' --yes" in capfd.readouterr().err


def test_the_version_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capfd.readouterr().out == f"penstock {version('penstock')}\n"


@pytest.mark.parametrize(("command", "behind"), [("apply", 1), ("resume", 1), ("plan", 0)])
def test_a_build_lets_the_pipeline_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, behind: int
) -> None:
    stepped: list[int] = []
    monkeypatch.setattr("apps.cli.command_line.step_back", lambda: stepped.append(1))
    monkeypatch.setattr(sys, "argv", ["penstock", "replay", command, "nope"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main()
    assert len(stepped) == behind
