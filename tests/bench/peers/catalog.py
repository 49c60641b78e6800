"""Which peer runs what, with which command: the entries of peers.json.

`penstock_lab.bench.measuring.peers` says what they mean.

Every peer has the configuration that was fastest: Flink with object reuse, without checkpoints where its state is on
heap or the workload asks for none, its tables reading and writing its own rows; PyFlink with large bundles and a large
state cache; Quix without changelog topics.
"""

HEAP, NO_CHECKPOINTS = "hashmap", "0"
NEXMARK = tuple(f"nexmark-{query}" for query in ("q0", "q1", "q2", "q5", "q7", "q11", "q12", "q17", "q18"))
NEXMARK_WHOLE = tuple(f"{name}-whole" for name in NEXMARK)
#: Flink never emits the last window of processing time, so that its answer cannot be compared.
BY_CLOCK = ("nexmark-q12", "nexmark-q12-whole")
#: Flink joins the bids of a window with its highest one: 20 M events did not end within four minutes.
SLOW = ("nexmark-q7", "nexmark-q7-whole")
#: Events of the small run that shows what start-up and compilation cost.
FEW = 200_000


def peers(there, flink_jars):
    """Return the entries of all that has been set up."""
    command = ("{python}", "{folder}/programs/bare_loop.py", "{events}")
    found = [entry("bare-loop", "bare-loop", ("w1",), command)]
    if "ceiling" in there:
        command = ("{python}", "{folder}/programs/ceiling.py", "{folder}/ceiling_prototype.py", "{events}")
        found.append(entry("ceiling", "ceiling", ("w1",), command, attempts=3))
    if "flink" in there:
        found += of_flink(flink_jars) + of_pyflink(flink_jars.parents[1])
    if {"flink", "nexmark"} <= there:
        job = java(flink_jars, "NexmarkJob", HEAP, NO_CHECKPOINTS, "{folder}/build/queries")
        both = NEXMARK + NEXMARK_WHOLE
        found.append(entry("flink-sql-nexmark", "flink-nexmark", both, job, few_events=FEW // 2, answers=False))
    if "bytewax" in there:
        flow = "w5_bytewax:flow({events}, '{scratch}')"
        command = ("{folder}/venvs/bytewax/bin/python", "-m", "bytewax.run", "-w", "1", flow)
        place = {"PYTHONPATH": "{folder}/programs"}
        found.append(entry("bytewax", "bytewax", ("w5",), command, environment=place, most_events=700_000))
    if "quix" in there:
        program = ("{folder}/venvs/quix/bin/python", "{folder}/programs/w5_quix.py", "{bootstrap}", "{topic}")
        command = (*program, "{events}", "{scratch}")
        found.append(entry("quix", "quix", ("w5",), command, broker=True, most_events=700_000))
    return found


def entry(name, rival, workloads, command, **more):
    return {"name": name, "rival": rival, "workloads": workloads, "command": command, **more}


def java(jars, job, backend, checkpoint_ms, *more):
    """Return the command of a job in one JVM."""
    opens = ("--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED")
    log = "-Dlog4j.configurationFile={folder}/build/peers.log4j2.properties"
    classes = f"{{folder}}/build/peers:{{folder}}/build/nexmark:{jars}/*:{{folder}}/jars/flink/*"
    words = ("{workload}", "{events}", backend, checkpoint_ms, "{managed_bytes}b", "{scratch}", *more)
    return ("java", "-Xmx6g", *opens, log, "-cp", classes, f"peers.{job}", *words)


def of_flink(jars):
    """Flink's two APIs, on heap and on RocksDB."""
    stream = java(jars, "StreamJob", HEAP, NO_CHECKPOINTS)
    sql = java(jars, "SqlJob", HEAP, NO_CHECKPOINTS)
    compared = (name for name in NEXMARK + NEXMARK_WHOLE if name not in BY_CLOCK + SLOW)
    found = [
        entry("flink-stream", "flink-heap", ("w1", "w1s"), stream, few_events=FEW, most_events=20_000_000),
        entry("flink-sql", "flink-heap", ("w1", "w1s"), sql, few_events=FEW, most_events=20_000_000),
        entry("flink-stream", "flink-stream", ("w3",), stream, few_events=FEW),
        entry("flink-sql", "flink-sql", ("w3", *compared), sql, few_events=FEW // 2),
        entry("flink-sql", "flink-sql", SLOW, sql, few_events=FEW // 2, most_events=2_000_000),
        entry("flink-sql", "flink-sql", BY_CLOCK, sql, few_events=FEW // 2, answers=False),
    ]
    command = java(jars, "SqlJob", "rocksdb", NO_CHECKPOINTS)
    few = {"few_events": FEW // 2, "most_events": 5_000_000}
    found.append(entry("flink-sql-rocksdb", "flink-rocksdb", BY_CLOCK, command, answers=False, **few))
    for api, job in (("stream", "StreamJob"), ("sql", "SqlJob")):
        name, slow = f"flink-{api}-rocksdb", 2_000_000 if api == "sql" else 1_000_000
        command = java(jars, job, "rocksdb", NO_CHECKPOINTS)
        found.append(entry(name, "flink-rocksdb", ("w1",), command, few_events=FEW, most_events=5_000_000))
        found.append(entry(name, "flink-rocksdb", ("w1s",), command, few_events=FEW, most_events=slow))
        command = java(jars, job, "rocksdb", "{checkpoint_ms}")
        most = 20_000_000 if api == "stream" else 5_000_000
        found.append(entry(name, "flink-rocksdb", ("w2",), command, few_events=FEW, most_events=most))
        found.append(entry(name, "flink-rocksdb", ("w2x",), command, few_events=FEW, most_events=4_000_000))
    kafka = java(jars, "SqlJob", HEAP, "5000", "{bootstrap}", "{topic}", "{out}")
    found.append(entry("flink-sql", "flink-sql", ("w4",), kafka, broker=True, few_events=FEW))
    return found


def of_pyflink(packages):
    """PyFlink with its Python workers as processes, and as threads of the JVM."""
    place = {
        # the interpreter inside the JVM does not know its venv
        "PYTHONPATH": f"{{folder}}/programs:{packages}",
        "_python_worker_execution_mode": "process",
    }
    found = []
    for mode in ("process", "thread"):  # with 510,000 events the first window closes; processes take minutes for them
        program = ("{folder}/venvs/flink/bin/python", "{folder}/programs/w5_pyflink.py")
        command = (*program, "{events}", mode, "{scratch}")
        found.append(entry(f"pyflink-{mode}", "pyflink", ("w5",), command, environment=place, most_events=510_000))
    return found
