"""Leases that no busy machine lets run out, for clusters of tests that count restarts or leaders."""

PATIENT = {
    f"PENSTOCK__JOBMANAGER__{name}_MS": "60000" for name in ("HEARTBEAT_TIMEOUT", "WORKER_LEASE", "LEADER_LEASE")
}
