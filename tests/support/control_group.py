"""A control group with a memory limit, as a container has: the kernel kills a process of it that needs more."""

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ControlGroup:
    """A group, and its files of version 1 or 2."""

    folder: Path
    limit_file: str
    kills_file: str

    def create(self, limit_bytes):
        """Raises OSError: this process may not."""
        if (controllers := self.folder.parent / "cgroup.subtree_control").exists():
            controllers.write_text("+memory", encoding="ascii")
        self.folder.mkdir()
        try:
            (self.folder / self.limit_file).write_text(str(limit_bytes), encoding="ascii")
        except OSError:
            self.folder.rmdir()
            raise

    @contextlib.contextmanager
    def joined(self):
        """Make this process a member: those that it starts stay in the group."""
        try:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            yield
        finally:
            (self.folder.parent / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def kills(self):
        """How many processes the kernel has killed because the group had no memory."""
        lines = (self.folder / self.kills_file).read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def remove(self):
        """Remove it once its processes have ended."""
        members = lambda: (self.folder / "cgroup.procs").read_text(encoding="ascii").split()
        wait_until(lambda: not members(), lambda: f"the end of {members()}")
        self.folder.rmdir()


@contextlib.contextmanager
def memory_group(limit_bytes):
    """Yield a group with this limit; None where this process may not create one."""
    group = _own_group(f"penstock-{secrets.token_hex(4)}")
    try:
        group.create(limit_bytes)
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.remove()


def _own_group(name):
    """Return a group below this process's own, so that the limits above stay."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = {controllers: path.strip("/") for _, controllers, path in (line.split(":", 2) for line in lines)}
    if "memory" in own:
        return ControlGroup(ROOT / "memory" / own["memory"] / name, "memory.limit_in_bytes", "memory.oom_control")
    return ControlGroup(ROOT / own.get("", "") / name, "memory.max", "memory.events")
