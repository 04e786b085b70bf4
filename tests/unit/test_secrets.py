"""What is masked wherever something is written for people, and what must never be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlperf_hpc.errors import printable, redacted, secrets_in, visible

NAMED = "value of an option or variable"
A = "aB3xY9" * 6
SECRET = [
    *[(f"x {text} y", text, "access token") for text in (
        f"ghp_{A}", f"gho_{A}", f"github_pat_11AAAA_{A}", f"glpat-{A}", f"gldt-{A}", f"hf_{A}",
        "xoxb-1234-5678-abCD", f"xapp-1-{A}", f"nvapi-{A}{A}", f"sk-proj-{A}", f"sk-{A}",
        "AKIA1234567890ABCDEF", f"eyJ{A}.eyJ{A}.{A}", f"wandb_v1_{A}",
    )],
    ("https://a.blob.net/c?sv=1&sig=ab%2Bcdefghijk%3D&se=9", "ab%2Bcdefghijk%3D", "signature"),
    (f"https://b.s3.aws.com/k?X-Amz-Expires=60&X-Amz-Signature={A}", A, "signature"),
    (f"https://chat.googleapis.com/v1/spaces/A?key={A}", A, "signature"),
    (f"https://hooks.slack.com/services/T0/B0/{A}", f"T0/B0/{A}", "webhook"),
    (f"https://acme.webhook.office.com/webhookb2/{A}@b/IncomingWebhook/c", A, "webhook"),
    (f"https://prod-1.logic.azure.com:443/workflows/1/paths/invoke?sp=x&sig={A}", A, "signature"),
    (f"https://discord.com/api/webhooks/12/{A}", A, "webhook"),
    ("postgres://me:pa:ss@word@host:5432/db", "pa:ss@word", "password in address"),
    ("pip install git+https://oauth2:4711@git.site/x.git", "4711", "password in address"),
    ("redis://:pw0rd@h:6379", "pw0rd", "password in address"),
    ("curl -H 'Authorization: Bearer abcdefghijklmnop'", "abcdefghijklmnop", "authorization"),
    ("-H 'Authorization: Basic dXNlcjpwYXNz'", "dXNlcjpwYXNz", "authorization"),
    *[(text, "s3.cr!t", NAMED) for text in (
        "train.py --password=s3.cr!t --lr 3", "x --token s3.cr!t", "--api-key s3.cr!t",
        "-token s3.cr!t", "--api_key=s3.cr!t", "['--token', 's3.cr!t']", '["--token","s3.cr!t"]',
        "--hub-token 's3.cr!t'", '"--token",\n  "s3.cr!t"', "HF_TOKEN=s3.cr!t", "DB_PASS=s3.cr!t",
        '{"HF_TOKEN": "s3.cr!t"}', 'HF_TOKEN = "s3.cr!t"', r"{\"WANDB_API_KEY\": \"s3.cr!t\"}",
        "Namespace(token='s3.cr!t', lr=3)", "a.token=s3.cr!t", "AWS_SECRET_ACCESS_KEY=s3.cr!t",
        "http://x/?a=1&access_token=s3.cr!t&b=2", "passphrase='s3.cr!t'", "MYSQL_PWD=s3.cr!t",
        "AccountKey=s3.cr!t;Suffix=x",
    )],
    ('["x", "--password=correct horse", "--lr=1"]', "correct horse", NAMED),
    ("--password 'correct horse' --lr 1", "correct horse", NAMED),
    ("--password=a,b;c&d,lr=1", "a,b;c&d", NAMED),
    (r'{"run": "x --password \"ab cd\" --lr 1"}', "ab cd", NAMED),
    ("PGPASSWORD=12345 psql", "12345", NAMED),
]  # fmt: skip
PLAIN = [
    *("hf_trainer", "hf_trainer_bert_base_uncased_squad_v2_finetuned", "task-" + "a" * 40, "xoxo"),
    *("--max-tokens 512", "--pad-token <pad>", "--eos_token=2", "--mask-token [MASK]", "token=5"),
    *("num_token=1.5e-3", "tokens_per_s=123.4", "tokens/s: 3.1", "token = 0.12345678901234567"),
    *("TOKENIZERS_PARALLELISM=false", "PWD=/home/me/x", "passes=3", "first-pass 3.2 s", "key=5"),
    *("http://node1:29500/a@b", "tcp://10.0.0.1:29500", "ssh://git@host:22/x", "git@a.com:b"),
    *("--token $HF_TOKEN", "--token ${T}", "HF_TOKEN=$(cat ~/.t)", "--token {token}"),
    *("--token-file /home/x", "--password-file=/a/b", "--token /run/secrets/x", "PASSWORD=./p"),
    *("usage: train.py [--token TOKEN] [--lr LR]", "Unexpected token: }", "if token == 'x':"),
    *("sig=0.12345678901234567", "use_auth_token=True", '{"token": "dlperf-0123456789abcdef"}'),
    *("logs/token=abc/x.log", "Tokenizer(vocab_size=5, pad_token='<pad>')", "a secret: none"),
    *('{"option": "--token",\n "next": "x"}', "--password --lr 3", "basic training_of_bert"),
]


@pytest.mark.parametrize(("text", "secret", "kind"), SECRET)
def test_a_secret_is_masked_and_nothing_else(text: str, secret: str, kind: str) -> None:
    out = redacted(text)
    assert secret not in out and "***" in out
    assert not [*secrets_in(out)] and visible(text) == out
    before, _, behind = text.partition(secret)
    assert before.startswith(out.split("***")[0])
    assert kind == "webhook" or out.endswith(behind)
    assert [found for *_, found in secrets_in(text)] == [kind]
    assert secret not in printable(f"{text}\n{text}")
    rest = "loss 1.0\n" * 99
    long = f"{rest}{text}\n{rest}"
    assert redacted(long) == long.replace(text, out)


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


@settings(max_examples=150)
@given(st.lists(st.sampled_from(["--token", "'", '"', "\\", " ", "=", ",", "x9", "password", "\n", "://",
                                 ":", "@", "[", "https://hooks.slack.com/", "{", "HF_TOKEN"]),
                max_size=14).map("".join), st.floats(0, 1e6))  # fmt: skip
def test_json_stays_json_and_numbers_stay(text: str, number: float) -> None:
    value = {"argv": [text, "x", text], text[:5]: number, "cut": {"HF_TOKEN": text, "n": number}}
    for indent in (None, 1):
        found = json.loads(redacted(json.dumps(value, indent=indent)))
        assert found["cut"]["n"] == number and len(found["argv"]) == 3


PIECES = [
    "token=",
    "--token ",
    "'token",
    "\\",
    '"',
    "://",
    "a://b:",
    "eyJ.",
    '["--token",',
    "token ",
]


@pytest.mark.parametrize("piece", [*PIECES, "password=,", "--", "bearer ", "secret_"])
def test_a_long_line_costs_what_its_length_is(piece: str) -> None:
    """A pattern that goes back over what it has read would take hours here."""
    assert len(redacted(piece * 20_000)) <= 20_000 * len(piece) + 3


@pytest.mark.skipif("DLPERF_REAL_LOGS" not in os.environ, reason="needs real logs")
def test_real_logs_are_read_as_they_are() -> None:
    read = 0
    for path in sorted(Path(os.environ["DLPERF_REAL_LOGS"]).rglob("*.*")):
        if path.is_file():
            text = path.read_bytes()[: 1 << 17].decode("latin-1")
            assert redacted(text) == text, path
            read += 1
    assert read > 20
