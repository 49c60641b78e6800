"""Addresses of a cluster, and the places to which a token may be sent."""

import pytest

from penstock.client.cluster_address import ClusterAddress
from penstock.core.errors import NoJobManagerError, UsageError


def test_urls_are_tried_in_order_and_the_one_that_answered_first():
    address = ClusterAddress("http://a:1/, http://b:2", has_token=False)
    assert (address.urls(), address.fails_over) == (["http://a:1", "http://b:2"], True)
    address.answered("http://b:2")
    assert address.urls() == ["http://b:2", "http://a:1"]
    assert not ClusterAddress("http://a:1", has_token=False).fails_over


@pytest.mark.parametrize("text", ["a:1", "ftp://a:1", "", "http://a:1,b:2", None, 8081, "http://a:99999", "http://a:b"])
def test_no_address(text):
    with pytest.raises(UsageError, match="is not the address of a JobManager"):
        ClusterAddress(text, has_token=False)


@pytest.mark.parametrize("text", ["http://a:1", "https://a:1,http://b:2"])
def test_a_token_is_sent_encrypted_or_to_this_machine(text):
    with pytest.raises(UsageError, match="is unencrypted: others could read the token"):
        ClusterAddress(text, has_token=True)
    ClusterAddress("http://127.0.0.1:1,https://b:2", has_token=True)


def test_a_folder_is_an_ha_root_but_a_url_never(tmp_path, monkeypatch):
    for folder in (tmp_path / "root", tmp_path / "http:" / "a:1"):
        folder.mkdir(parents=True)
        (folder / "leader.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert ClusterAddress("root", has_token=False).fails_over
    assert ClusterAddress("http://a:1", has_token=False).urls() == ["http://a:1"]
    with pytest.raises(NoJobManagerError, match="no JobManager leads"):
        ClusterAddress(f"file://{tmp_path}/empty", has_token=False).urls()


def test_a_redirect_keeps_the_path_and_the_protection():
    address = ClusterAddress("https://a:1", has_token=True)
    assert address.redirected("https://b:2/v1/jobs?x=1", "/v1/jobs?x=1") == "https://b:2"
    with pytest.raises(UsageError, match="redirects to 'https://login/', which is no JobManager"):
        address.redirected("https://login/", "/v1/jobs")
    with pytest.raises(UsageError, match="is unencrypted"):
        address.redirected("http://b:2/v1/jobs", "/v1/jobs")
