"""The Airflow provider of penstock: connection type, hook, operators, sensors, triggers; for Airflow 3.3 and later."""
