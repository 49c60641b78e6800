"""The splits that determine a subtask's watermark: the answer to "what holds it back?".

Made by `task.drive.state_queries` in the subtask's thread; `jobmanager.observe.watermark_holder` combines the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.elements import MIN_TIMESTAMP
from penstock.eventtime.split_watermarks import SplitWatermarks

if TYPE_CHECKING:
    from penstock.eventtime.split_watermarks import SplitProgress
    from penstock.graph.deployment import TaskDeployment
    from penstock.task.chain.chain import Chain

#: Number of splits that an answer names, those with the lowest watermarks.
MOST_SPLITS = 20


def watermarks_of(deployment: TaskDeployment, chain: Chain) -> list[dict[str, Any]]:
    """Return the watermark (ms) of each operator that makes one, and its splits with the lowest ones, lowest first.

    A split that is neither idle nor finished holds the watermark back; watermarks are None before the first one.
    """
    found = []
    for link in chain.links:
        marks = getattr(link.operator, "split_watermarks", None)
        if isinstance(marks, SplitWatermarks):
            splits = sorted(marks.progress, key=lambda s: (s.finished, s.idle, s.watermark, s.split_id))
            found.append(
                {
                    "uid": link.spec.uid,
                    "subtask": deployment.execution.subtask,
                    "watermark": _ms(marks.combined),
                    "idle": marks.idle,
                    "count": len(splits),
                    "splits": [_split(split) for split in splits[:MOST_SPLITS]],
                }
            )
    return found


def _split(split: SplitProgress) -> dict[str, Any]:
    return {
        "id": split.split_id,
        "watermark": _ms(split.watermark),
        "idle": split.idle,
        "finished": split.finished,
        "standing-ms": int(split.standing_ms),
        "quiet-ms": int(split.quiet_ms),
    }


def _ms(watermark: int) -> int | None:
    return None if watermark == MIN_TIMESTAMP else watermark // 1000
