"""Airflow provider for penstock: hook, operators, sensors and triggers that own the life of a job."""
