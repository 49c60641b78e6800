"""The address under which a TaskManager on Spark is reached."""

from penstock.client.spark_cluster import _host_towards


def test_a_machine_is_reached_where_it_goes_out_to_the_jobmanager():
    assert _host_towards("127.0.0.1:6123") == "127.0.0.1"
