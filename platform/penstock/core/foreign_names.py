"""Names of other stream systems, and the way to write the same with penstock; `core.errors` looks up unknown names.

Flink in Java and Python, Spark, Kafka Streams, Bytewax, Faust, Quix and Pathway. A name is looked up without case and
underscores: `keyBy` and `KEY_BY` are one entry.
"""

from __future__ import annotations

_TUMBLING, _SLIDING, _SESSION = "ps.Tumbling(size)", "ps.Sliding(size, slide)", "ps.Session(gap)"
_PROCESSING = ", time='processing')"
_ENVIRONMENT = "ps.Environment()"
_SCHEMA = "class Order(ps.Schema) with annotated fields"
_INTERVAL = "ps.Environment(checkpoint_interval='5s')"
_BACKEND = "ps.Environment(state_backend='rocksdb')"
_PARALLELISM = "ps.Environment(parallelism=2), or .set_parallelism(2) of an operator"
_DURATION = "a text such as '5s', or a number of seconds"
_COLLECTION = "env.from_collection(rows)"
_COLLECT = ".execute_and_collect(limit=100)"
_TIMERS = "ctx.timers.event(us) or ctx.timers.processing(us)"
_SIDE = "ctx.side('tag', row) in the function, stream.side_output('tag') after it"
_TIMESTAMP = "timestamp='column' of the strategy, such as ps.WatermarkStrategy.monotonic(timestamp='ts')"
_BOUNDED = "ps.WatermarkStrategy.bounded_out_of_orderness('5s', timestamp='ts')"
_LAMBDA = "a function: .map(f), .flat_map(f), .filter(f)"
_ASYNC = ".map_async(f) with an async function"
_BROADCAST = "ps.KeyedBroadcastProcessFunction"
_WINDOW_FUNCTION = "ps.ProcessWindowFunction, or .apply(f)"
_KAFKA = "from penstock_connectors.kafka import "
_FILES = "from penstock_connectors.files import "

#: What a user tried -> what to write.
_WAYS = {
    # aggregates and options as methods of the wrong object
    "sum": ".aggregate(total=ps.sum('column'))",
    "count": ".aggregate(n=ps.count())",
    "min": ".aggregate(lowest=ps.min('column'))",
    "max": ".aggregate(highest=ps.max('column'))",
    "mean": ".aggregate(mean=ps.mean('column'))",
    "allowed_lateness": ".window(...).allowed_lateness('5s')",
    "late_to": ".window(...).late_to('tag')",
    # windows
    "Hopping": _SLIDING,
    "Hop": _SLIDING,
    "HoppingWindow": _SLIDING,
    "SlidingWindow": _SLIDING,
    "SlidingWindower": _SLIDING,
    "SlidingEventTimeWindows": _SLIDING,
    "SlidingProcessingTimeWindows": _SLIDING.replace(")", _PROCESSING),
    "Tumble": _TUMBLING,
    "TumblingWindow": _TUMBLING,
    "TumblingWindower": _TUMBLING,
    "TumblingEventTimeWindows": _TUMBLING,
    "TumblingProcessingTimeWindows": _TUMBLING.replace(")", _PROCESSING),
    "SessionWindow": _SESSION,
    "SessionWindower": _SESSION,
    "EventTimeSessionWindows": _SESSION,
    "ProcessingTimeSessionWindows": _SESSION.replace(")", _PROCESSING),
    "GlobalWindow": "ps.Global()",
    "GlobalWindows": "ps.Global()",
    "CountWindow": "stream.count_window(size)",
    "Cumulate": "ps.Cumulative(step, size)",
    "CountTrigger": "ps.trigger.count(100)",
    "EventTimeTrigger": "ps.trigger.event_time()",
    "ContinuousEventTimeTrigger": "ps.trigger.continuous_event_time('10s')",
    "PurgingTrigger": "ps.trigger.purging(ps.trigger.count(100))",
    "TimeWindow": _TUMBLING,
    "Time": _DURATION,
    "Duration": _DURATION,
    "timedelta": _DURATION,
    # jobs and types
    "StreamExecutionEnvironment": _ENVIRONMENT,
    "ExecutionEnvironment": _ENVIRONMENT,
    "get_execution_environment": _ENVIRONMENT,
    "StreamTableEnvironment": f"{_ENVIRONMENT}; there is no Table API",
    "TableEnvironment": f"{_ENVIRONMENT}; there is no Table API",
    "StreamsBuilder": _ENVIRONMENT,
    "Dataflow": _ENVIRONMENT,
    "Application": _ENVIRONMENT,
    "App": _ENVIRONMENT,
    "SparkSession": _ENVIRONMENT,
    "Types": _SCHEMA,
    "TypeInformation": _SCHEMA,
    "Row": _SCHEMA,
    "Record": _SCHEMA,
    "StructType": _SCHEMA,
    "CheckpointConfig": _INTERVAL,
    "enable_checkpointing": _INTERVAL,
    "get_checkpoint_config": _INTERVAL,
    "CheckpointingMode": "ps.Environment(checkpoint_mode='at-least-once')",
    "set_checkpointing_mode": "ps.Environment(checkpoint_mode='at-least-once')",
    "set_max_concurrent_checkpoints": "ps.Environment(max_concurrent_checkpoints=2)",
    "set_parallelism": _PARALLELISM,
    "RestartStrategies": "ps.RestartStrategy(kind='fixed-delay', attempts=3)",
    "set_restart_strategy": "ps.Environment(restart=ps.RestartStrategy(kind='fixed-delay', attempts=3))",
    "HashMapStateBackend": _BACKEND.replace("rocksdb", "hashmap"),
    "EmbeddedRocksDBStateBackend": _BACKEND,
    "RocksDBStateBackend": _BACKEND,
    "set_state_backend": _BACKEND,
    "set_max_parallelism": "ps.Environment(key_groups=1024)",
    # watermarks
    "for_bounded_out_of_orderness": _BOUNDED,
    "BoundedOutOfOrdernessTimestampExtractor": _BOUNDED,
    "for_monotonous_timestamps": "ps.WatermarkStrategy.monotonic(timestamp='ts')",
    "TimestampAssigner": _TIMESTAMP,
    "with_timestamp_assigner": _TIMESTAMP,
    "AssignerWithPunctuatedWatermarks": "ps.WatermarkStrategy.punctuated(timestamp='ts', watermark='mark')",
    "with_watermark": "env.from_source(source, watermarks=ps.WatermarkStrategy...)",
    # sources and sinks
    "KafkaSource": f"{_KAFKA}KafkaSource",
    "FlinkKafkaConsumer": f"{_KAFKA}KafkaSource",
    "KafkaSink": f"{_KAFKA}KafkaSink",
    "FlinkKafkaProducer": f"{_KAFKA}KafkaSink",
    "FileSource": f"{_FILES}FileSource",
    "FileSink": f"{_FILES}FileSink",
    "StreamingFileSink": f"{_FILES}FileSink",
    "OffsetsInitializer": "start='earliest' of KafkaSource",
    "KafkaOffsetsInitializer": "start='earliest' of KafkaSource",
    "DeliveryGuarantee": "delivery='exactly-once' of KafkaSink",
    "add_source": "env.from_source(source, uid='orders')",
    "from_elements": _COLLECTION,
    "from_list": _COLLECTION,
    "add_sink": ".sink_to(sink, uid='out')",
    "to": ".sink_to(sink, uid='out')",
    "write_stream": ".sink_to(sink, uid='out')",
    # functions and state
    "MapFunction": _LAMBDA,
    "FlatMapFunction": _LAMBDA,
    "FilterFunction": _LAMBDA,
    "RichMapFunction": "ps.ProcessFunction, with open(self, ctx)",
    "RichFlatMapFunction": "ps.ProcessFunction, with open(self, ctx)",
    "ReduceFunction": ".reduce(f)",
    "AggregateFunction": "ps.sum('amount') and others, or ps.Aggregator with ps.aggregating",
    "KeySelector": ".key_by('column'), or .key_by(f)",
    "CoProcessFunction": "ps.KeyedCoProcessFunction",
    "BroadcastProcessFunction": _BROADCAST,
    "WindowFunction": _WINDOW_FUNCTION,
    "AllWindowFunction": "ps.ProcessAllWindowFunction, or .apply(f)",
    "AsyncFunction": _ASYNC,
    "AsyncDataStream": _ASYNC,
    "RuntimeContext": "ps.OpenContext, the argument of open",
    "get_runtime_context": "ps.OpenContext, the argument of open",
    "ValueStateDescriptor": "a class attribute: last: ps.ValueState[int] = ps.value_state()",
    "ListStateDescriptor": "a class attribute: rows: ps.ListState[int] = ps.list_state()",
    "MapStateDescriptor": "a class attribute: seen: ps.MapState[str, int] = ps.map_state()",
    "ReducingStateDescriptor": "a class attribute: most: ps.ReducingState[int] = ps.reducing_state(max)",
    "AggregatingStateDescriptor": "ps.aggregating_state",
    "get_state": "a class attribute: last: ps.ValueState[int] = ps.value_state()",
    "OutputTag": _SIDE,
    "get_side_output": _SIDE,
    "side_output_late_data": ".late_to('late')",
    "timer_service": _TIMERS,
    "register_event_time_timer": _TIMERS,
    "register_processing_time_timer": _TIMERS,
    # streams
    "group_by": ".key_by('column')",
    "group_by_key": ".key_by('column')",
    "key_on": ".key_by('column')",
    "time_window": f".window({_TUMBLING})",
    "window_by": f".window({_TUMBLING})",
    "fold_window": ".aggregate(...), .reduce(f) or .apply(f) of a window",
    "co_group": ".join(other, ...)",
    "drop_duplicates": ".key_by('column').deduplicate()",
    "distinct": ".key_by('column').deduplicate()",
    "map_values": ".map(f)",
    "collect": _COLLECT,
    "to_pandas": _COLLECT,
    "foreach": ".sink_to(sink, uid='out'), or .map(f)",
    "foreach_batch": ".map_batches(f), or .sink_to(sink, uid='out')",
    "with_column": ".with_columns(total=...)",
    "where": ".filter(condition)",
    # names that need keys
    "window": ".key_by('column').window(...), or .window_all(...) over all rows",
    "interval_join": "a.key_by('k').interval_join(b.key_by('k'), '-5s', '5s')",
    "timers": "a ps.KeyedProcessFunction after .key_by('column'): timers need keys",
}


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


_BY_PLAIN_NAME = {_plain(name): way for name, way in _WAYS.items()}


def ways() -> dict[str, str]:
    """Return what to write, by the name of the other system."""
    return dict(_WAYS)


def foreign_hint(name: str) -> str:
    """Return a hint for a name that another stream system has; empty for any other name."""
    way = _BY_PLAIN_NAME.get(_plain(name), "")
    return f"use {way}" if way else ""
