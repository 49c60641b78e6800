"""The master of one job: a pure decider composed of the rooms below; driven by `jobs.job_driver`."""
