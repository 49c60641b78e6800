"""The Airflow provider of penstock: so far only its metadata, so that Airflow lists it; no hook or operator exists yet."""
