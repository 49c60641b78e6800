"""`penstock.toml`, environment variables and options: values, priorities, origins, and what is refused."""

import pytest

from penstock.config.config_file import FILE_VARIABLE, Configuration, configuration
from penstock.core.errors import UsageError

CONTENT = """
[job]
state_backend = "rocksdb"
checkpoint_interval = "5s"
managed_memory = "512MB"
python_path = ["a", "b"]
checkpoint_root = "s3://bucket/jobs"

[job.restart]
kind = "fixed-delay"
delay = 2

[cluster]
ha_root = "state/ha"
insecure = true

[jobmanager]
heartbeat_interval = "300ms"

[taskmanager]
slots = 3
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "penstock.toml").write_text(CONTENT)
    return tmp_path


def test_without_a_file_every_setting_has_its_default(tmp_path):
    found = configuration(environment={}, folder=tmp_path)
    assert found.settings == Configuration()
    assert found.path is None
    assert {origin for _, _, origin in found.entries()} == {"default"}


def test_the_file_of_the_working_folder_sets_values_with_units_and_numbers_in_seconds(folder):
    settings = configuration(environment={}, folder=folder).settings
    assert settings.job.state_backend == "rocksdb"
    assert settings.job.checkpoint_interval_ms == 5_000
    assert settings.job.managed_memory_bytes == 512 << 20
    assert settings.job.python_path == ("a", "b")
    assert (settings.job.restart.kind, settings.job.restart.delay_ms) == ("fixed-delay", 2_000)
    assert settings.cluster.insecure
    assert settings.jobmanager.heartbeat_interval_ms == 300
    assert settings.jobmanager.heartbeat_timeout_ms == 5_000


def test_a_relative_path_starts_at_the_files_folder(folder):
    settings = configuration(
        environment={FILE_VARIABLE: str(folder / "penstock.toml")}, folder=folder / "other"
    ).settings
    assert settings.cluster.ha_root == str(folder / "state/ha")
    assert settings.job.checkpoint_root == "s3://bucket/jobs"


def test_an_option_wins_over_a_variable_and_a_variable_over_the_file(folder):
    environment = {
        "PENSTOCK__TASKMANAGER__SLOTS": "4",
        "PENSTOCK__JOB__RESTART__DELAY": "7s",
        "PENSTOCK_LOG_FORMAT": "json",
    }
    found = configuration({"taskmanager.slots": "5"}, environment, folder)
    assert found.settings.taskmanager.slots == 5
    assert found.settings.job.restart.delay_ms == 7_000
    origins = {name: origin for name, _, origin in found.entries() if origin != "default"}
    file = str(folder / "penstock.toml")
    assert origins == {
        "job.state_backend": file,
        "job.checkpoint_interval_ms": file,
        "job.managed_memory_bytes": file,
        "job.python_path": file,
        "job.checkpoint_root": file,
        "job.restart.kind": file,
        "job.restart.delay_ms": "$PENSTOCK__JOB__RESTART__DELAY",
        "cluster.ha_root": file,
        "cluster.insecure": file,
        "cluster.log_format": "$PENSTOCK_LOG_FORMAT",
        "jobmanager.heartbeat_interval_ms": file,
        "taskmanager.slots": "option",
    }


REFUSED = {
    "[taskmanager]\nslot = 3": ("unknown setting 'taskmanager.slot'", "did you mean 'taskmanager.slots'?"),
    "[taskmanagers]\nslots = 3": ("unknown setting 'taskmanagers.slots'", "did you mean 'taskmanager"),
    "slots = 3": ("unknown setting 'slots'", "there are: client, cluster, job, jobmanager, taskmanager"),
    "[job.restart]\nkind = 'never'": ("setting job.restart.kind='never' is not known", "one of fixed-delay"),
    "[job]\nparallelism = 'two'": ("job.parallelism='two' is not a whole number", "for example job.parallelism=1"),
    "[job]\ncheckpoint_interval = true": ("job.checkpoint_interval True is not a duration", "'5s'"),
    "[job]\nmanaged_memory = true": ("job.managed_memory True is not a size", "'1GB'"),
    "[job]\nrestart = 'none'": ("job.restart='none' is not known: job.restart is a group", "job.restart.kind"),
    "[jobmanager]\nheartbeat_timeout = '200ms'": ("heartbeat_timeout_ms is 200, but has to be from 1000", "change"),
    "[jobmanager]\nworker_lease = '6s'": ("worker_lease_ms is 6000, but has to be from 1000 to 5000", "change"),
    "[jobmanager]\nrest_port = 70000": ("rest_port is 70000, but has to be from 0 to 65535", "change"),
    "[job.autoscaler]\ntarget_utilization = 2": ("job.autoscaler.target_utilization is 2", "change"),
    "[job]\nkey_groups = 0": ("job.key_groups is 0, but has to be from 1 to 32768", "change"),
    "[job]\nparallelism = -1": ("job.parallelism is -1, but has to be from 1", "change"),
    "[job]\ncheckpoint_interval = '0s'": ("job.checkpoint_interval_ms is 0, but has to be from 1", "'5s'"),
    "[job]\nbuffer_debloat_target = -1": ("job.buffer_debloat_target_ms is -1000, but has to be from 0", "change"),
    "[job]\nmax_concurrent_checkpoints = 33": (
        "max_concurrent_checkpoints is 33, but has to be from 1 to 32",
        "change",
    ),
    "[job]\nmax_concurrent_checkpoints = 2\ncheckpoint_min_pause = '1s'": (
        "job.max_concurrent_checkpoints is 2, but has to be 1 with checkpoint_min_pause_ms",
        "change",
    ),
    "[job]\nmax_concurrent_checkpoints = 2\nunaligned_checkpoints = true": (
        "job.max_concurrent_checkpoints is 2, but has to be 1 with unaligned_checkpoints",
        "change",
    ),
    "[job]\ncheckpoint_mode = 'at-least-once'\nunaligned_checkpoints = true": (
        "job.unaligned_checkpoints is true, but checkpoint_mode is at-least-once",
        "change",
    ),
    "[job]\ncheckpoint_timeout = -5": ("job.checkpoint_timeout_ms is -5000, but has to be from 1", "change"),
    "[job\n": ("is not TOML", "line 1"),
}


@pytest.mark.parametrize("content", REFUSED)
def test_a_wrong_file_is_refused_with_its_path_the_setting_and_a_way_out(tmp_path, content):
    (tmp_path / "penstock.toml").write_text(content)
    with pytest.raises(UsageError) as refused:
        configuration(environment={}, folder=tmp_path)
    for text in (str(tmp_path / "penstock.toml"), *REFUSED[content]):
        assert text in str(refused.value)


def test_an_unknown_variable_and_a_missing_file_are_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"\$PENSTOCK__TASKMANAGER__SLOT: unknown setting 'taskmanager.slot'"):
        configuration(environment={"PENSTOCK__TASKMANAGER__SLOT": "4"}, folder=tmp_path)
    with pytest.raises(UsageError, match=r"there is no configuration file .*/other.toml \(check --config"):
        configuration(environment={FILE_VARIABLE: "other.toml"}, folder=tmp_path)
