"""Prometheus text under Flink's names."""

from penstock.metrics.prometheus import TASKMANAGER_SCOPE, render, scope_samples, task_samples


def test_a_subtask_appears_under_flinks_name_with_its_labels():
    text = render(task_samples({"abc/1": {"numRecordsIn": 12.0}}, {"job_id": "j", "tm_id": "t"}, {"abc": 'win"dow'}))
    assert text == (
        "# TYPE flink_taskmanager_job_task_numRecordsIn gauge\n"
        'flink_taskmanager_job_task_numRecordsIn{job_id="j",subtask_index="1",task_id="abc",'
        'task_name="win\\"dow",tm_id="t"} 12\n'
    )


def test_one_type_line_for_many_subtasks_and_special_numbers():
    samples = task_samples({"v/0": {"x": float("inf")}, "v/1": {"x": 0.5}}, {})
    assert render(samples).count("# TYPE") == 1
    assert "} +Inf" in render(samples)
    assert "} 0.5" in render(samples)


def test_names_are_made_legal():
    assert "flink_taskmanager_Status_JVM" in render(scope_samples(TASKMANAGER_SCOPE, {"Status.JVM": 1.0}, {}))


def test_nothing_renders_to_nothing():
    assert render([]) == ""


def test_operators_have_a_scope_and_a_label_of_their_own():
    text = render(task_samples({"abc/1": {"operator/totals/cpuTimeMsPerSecond": 12.5, "numRecordsIn": 1.0}}, {}))
    assert (
        'flink_taskmanager_job_task_operator_cpuTimeMsPerSecond{operator_name="totals",subtask_index="1",task_id="abc",'
        'task_name="abc"} 12.5'
    ) in text
    assert "operator/totals" not in text
