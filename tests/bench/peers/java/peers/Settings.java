package peers;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** One JVM with two slots; what the command line says: `... BACKEND CHECKPOINT_MS MANAGED_MEMORY FOLDER` behind two words. */
final class Settings {
    private Settings() {}

    static StreamExecutionEnvironment environment(String[] words) {
        String backend = words[2], interval = words[3], managed = words[4], folder = words[5];
        Configuration settings = new Configuration();
        settings.setString("state.backend.type", backend);
        settings.setString("execution.checkpointing.incremental", "true");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", "file://" + folder + "/checkpoints");
        settings.setString("io.tmp.dirs", folder);
        settings.setString("taskmanager.memory.managed.size", managed);
        settings.setString("table.local-time-zone", "UTC");
        settings.setString("heartbeat.timeout", "600000"); // a busy machine is not a lost one
        if (!interval.equals("0")) settings.setString("execution.checkpointing.interval", interval + " ms");
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        env.setParallelism(2);
        env.getConfig().enableObjectReuse();
        return env;
    }
}
