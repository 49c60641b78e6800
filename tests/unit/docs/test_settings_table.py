"""docs/reference/settings.md names every setting with its default, and nothing else."""

import msgspec
import pytest
from documents import names, rows

from penstock.config.config_file import ClientSettings, SharedSettings, TaskManagerSettings
from penstock.config.settings import (
    AdaptiveSchedulerSettings,
    AutoscalerSettings,
    ClusterSettings,
    JobSettings,
    ResourceProfile,
    RestartStrategy,
)

TABLES = {
    "Of a job": JobSettings,
    "Of a resource profile": ResourceProfile,
    "Of the restart strategy": RestartStrategy,
    "Of the autoscaler": AutoscalerSettings,
    "Of the adaptive scheduler": AdaptiveSchedulerSettings,
    "Of a JobManager": ClusterSettings,
    "Of a TaskManager": TaskManagerSettings,
    "Of a cluster": SharedSettings,
    "Of a client": ClientSettings,
}


def shown(default):
    """Return a default as the page writes it."""
    if default is None or default == ():
        return "none"
    return "" if isinstance(default, (RestartStrategy, AutoscalerSettings, AdaptiveSchedulerSettings)) else str(default)


@pytest.mark.parametrize("heading", TABLES)
def test_names_and_defaults(heading):
    table = [(names(cells[0])[0], cells[1]) for cells in rows("docs/reference/settings.md", heading)]
    assert table == [(field.name, shown(field.default)) for field in msgspec.structs.fields(TABLES[heading])]
