"""The Airflow provider of penstock: so far its metadata only; no hook or operator exists yet."""
