"""An engine that does in this process what Spark does with packets: tasks in any order, some of them twice.

It runs the functions that Spark's executors run; only the shuffle is its own.
"""

import itertools
from collections import defaultdict
from operator import attrgetter

import msgspec

from penstock.backfill.spark import chooser, part_of, results_of, task_of
from penstock.backfill.stages import TaskResult, feeds


class PacketsEngine:
    """Runs the tasks of a stage in a drawn order, each with the packets of one part."""

    def __init__(self, rand, repeated=0.1):
        """Run a task again with probability `repeated`, as after the loss of an executor; the first result is lost."""
        self._rand, self._repeated = rand, repeated
        self._given = defaultdict(list)

    def run(self, stage, progress):
        """Run all tasks of a stage; see `engine.Engine`."""
        task = task_of(msgspec.msgpack.encode(stage))
        inputs = [[number] for number in range(stage.parts)] if stage.vertex.is_source else self._parts(stage)
        results = []
        for number in self._rand.sample(range(stage.parts), stage.parts):
            if self._rand.random() < self._repeated:
                for _ in task(number, iter(inputs[number])):
                    pass
            pairs = list(task(number, iter(inputs[number])))
            results += [msgspec.msgpack.decode(data, type=TaskResult) for data in results_of(pairs)]
            self._given[stage.vertex.id].append(pairs)
        progress(stage, stage.parts, stage.parts)
        return sorted(results, key=attrgetter("part"))

    def close(self):
        """Drop all rows."""
        self._given.clear()

    def _parts(self, stage):
        sources = feeds(stage)
        given = [self._given[vertex_id] for vertex_id, _ in sources]
        choose = chooser([index for _, index in sources], list(itertools.accumulate(map(len, given))))
        found = [[] for _ in range(stage.parts)]
        for partition, pairs in enumerate(itertools.chain(*given)):
            for pair in choose(partition, iter(pairs)):
                found[part_of(pair[0])].append(pair)
        return [self._rand.sample(pairs, len(pairs)) for pairs in found]
