"""Secrets are struck from texts, and nothing else is."""

import pickle
import time

import pytest

from penstock.core import secrets
from penstock.core.secrets import Redactor, Secret, redact, redacted, register_secret, secret_values


@pytest.mark.parametrize(
    ("text", "struck"),
    [
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer ******"),
        ("{'authorization': 'basic YWJjOmRlZmdo'}", "{'authorization': 'basic ******'}"),
        ("sasl.password=pa55wort, next=1", "sasl.password=******, next=1"),
        ("{'sasl.password': 'pa 55', 'a': 1}", "{'sasl.password': ******, 'a': 1}"),
        ('{"ssl.key.password":"x"}', '{"ssl.key.password":******}'),
        ('{"password": "cut he', '{"password": ******'),
        ("PENSTOCK_S3_SECRET_KEY=abc", "PENSTOCK_S3_SECRET_KEY=******"),
        ("s3_secret_key: abc; ok", "s3_secret_key: ******; ok"),
        ("kafka://me:hidden@host:9", "kafka://me:******@host:9"),
        ("-----BEGIN RSA PRIVATE KEY-----\nAA\nBB\n-----END RSA PRIVATE KEY----- after", "****** after"),
        ("-----BEGIN PRIVATE KEY-----\nAA", "******"),
    ],
)
def test_what_looks_like_a_secret_is_struck(text, struck):
    assert Redactor()(text) == struck


@pytest.mark.parametrize(
    "text",
    [
        "sasl.password=${ENV:KAFKA_PASSWORD}",
        "set '${ENV:SASL_PASSWORD}' and run again",
        "environment variable KAFKA_PASSWORD is not set in this process",
        "http://127.0.0.1:8081/jobs",
        "s3://bucket/a@b",
        "the token of the job is idempotent",
        "-----BEGIN CERTIFICATE-----",
        "check PENSTOCK_S3_ACCESS_KEY and PENSTOCK_S3_SECRET_KEY and the bucket's policy",
        "PENSTOCK_S3_ACCESS_KEY=lab-user",
        "AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_what_is_none_stays(text):
    assert Redactor()(text) == text


def test_known_values_are_struck_wherever_they_stand():
    environment = {
        "DB_PASSWORD": "kitten77",
        "API_TOKEN": "kitten7700",
        "TOKEN_FILE": "/etc/token",
        "MY_SECRET": "abc",
        "PATH": "/bin",
    }
    values = secret_values(environment)
    assert values == {"kitten77", "kitten7700", "abc"}
    assert Redactor(values)("say kitten7700, kitten77 and abc") == "say ******, ****** and abc", (
        "three letters are a word"
    )


def test_the_id_of_an_access_key_is_no_secret_and_a_key_of_other_stores_is():
    ids = {"PENSTOCK_S3_ACCESS_KEY": "penstock", "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE"}
    keys = {"AWS_SECRET_ACCESS_KEY": "hidden-aws", "PENSTOCK_S3_SECRET_KEY": "hidden-s3", "AZURE_ACCESS_KEY": "hidden"}
    values = secret_values(ids | keys)
    assert values == set(keys.values())
    text = "penstock: InvalidAccessKeyId AKIAEXAMPLE"
    assert Redactor(values)(text) == text


def test_a_text_is_redacted_before_it_is_cut():
    text = '{"a": 1, "password": "0123456789", "b": 2}'
    assert redacted(text, 30, "...") == '{"a": 1, "password": ******, "...'
    assert redacted(text, 100, "...") == '{"a": 1, "password": ******, "b": 2}'
    assert redacted(f'"password": "{"x" * 1_000_000}', 30) == '"password": ******'


def test_this_process_remembers(monkeypatch):
    monkeypatch.setattr(secrets, "_remembered", set())
    assert redact("qwertzuiop") == "qwertzuiop"
    register_secret("qwertzuiop")
    assert redact("qwertzuiop") == "******"
    secrets._of_this_process.cache_clear()


def test_a_secret_is_not_shown_and_not_taken_along():
    secret = Secret("visible")
    assert "visible" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "visible"
    assert not Secret()
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@pytest.mark.parametrize(
    "piece",
    ["a", "a.", "a-", "a+", "://a", "://a:", "secret", "password ", "password=", "'", "-----BEGIN ", "PRIVATE KEY ",
     "bearer ", "a:"],
)  # fmt: skip
def test_no_text_takes_longer_than_its_length(piece):
    text = (piece * (1 << 16))[: 1 << 16]
    began = time.process_time()
    Redactor()(text)
    assert time.process_time() - began < 3, "it runs on the event loop, over texts that strangers send"
