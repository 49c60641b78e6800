"""Provider metadata, read by Airflow's provider discovery through the entry point in pyproject.toml."""


def get_provider_info() -> dict[str, object]:
    """Describe this provider to Airflow; the package name must equal the distribution's name."""
    return {
        "package-name": "penstock",
        "name": "penstock",
        "description": "Provider of penstock jobs; operators are not there yet.",
    }
