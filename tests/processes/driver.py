"""A supervisor to be killed: `driver.py <conftest folder> <work dir>` starts two workers and prints all pids."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the conftest imports the tests' support


async def main(folder: Path, work_dir: Path) -> None:
    spec = importlib.util.spec_from_file_location("stage", folder / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stage = module.Stage(work_dir)
    await stage.open()
    for number, run in enumerate(("hold_gil", None)):
        stage.start(f"w{number}", slot=number)
        await stage.jobmanager.ready(f"w{number}")
        if run:
            stage.probe(f"w{number}", run)
    pids = {"workers": list(stage.supervisor.worker_pids.values()), "templates": stage.supervisor.template_pids}
    print(json.dumps(pids), flush=True)
    await asyncio.sleep(3600)


asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
