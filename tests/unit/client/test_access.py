"""Where a client's token and certificates come from, and that a token goes nowhere it can be read."""

import pytest

from penstock.client.access import ClientAccess, access_of
from penstock.client.rest_client import RestClient
from penstock.core.errors import UsageError
from penstock.core.secrets import Secret


def test_nothing():
    assert access_of({}).headers() == {}
    assert access_of({}).ca is None


def test_a_token_is_a_secret():
    with pytest.raises(UsageError, match=r"token is a plain text \(write token=Secret"):
        ClientAccess(token="plain")


def test_the_environment_before_files_before_the_folder(tmp_path):
    for name in ("admin.token", "viewer.token", "ca.pem", "client.pem", "client.key"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "mine").write_text("mine\n")
    folder = {"PENSTOCK_SECURITY": str(tmp_path)}
    found = access_of(folder)
    assert found.headers() == {"Authorization": "Bearer admin.token"}
    assert (found.ca, found.certificate, found.key) == (
        tmp_path / "ca.pem",
        tmp_path / "client.pem",
        tmp_path / "client.key",
    )
    (tmp_path / "admin.token").unlink()
    assert access_of(folder).token.reveal() == "viewer.token"
    by_file = {**folder, "PENSTOCK_TOKEN_FILE": str(tmp_path / "mine")}
    assert access_of(by_file).token.reveal() == "mine"
    assert access_of({**by_file, "PENSTOCK_TOKEN": "direct"}).token.reveal() == "direct"
    places = [{**by_file, "PENSTOCK_TOKEN": "direct"}, by_file, folder, {}]
    expected = ["PENSTOCK_TOKEN", str(tmp_path / "mine"), str(tmp_path / "viewer.token"), ""]
    assert [access_of(given).token_from for given in places] == expected
    with pytest.raises(UsageError, match="PENSTOCK_TOKEN_FILE"):
        access_of({"PENSTOCK_TOKEN_FILE": str(tmp_path / "none")})


def test_a_token_is_not_sent_in_the_clear_to_another_machine():
    access = ClientAccess(token=Secret("t"))
    RestClient("http://127.0.0.1:1", access=access)
    RestClient("https://node7:1", access=access)
    with pytest.raises(UsageError, match="https://"):
        RestClient("http://node7:1", access=access)


def test_certificates_that_are_none(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UsageError, match=r"cannot load certificates .*ca\.pem"):
        ClientAccess(ca=tmp_path / "ca.pem").context()
