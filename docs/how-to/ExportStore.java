import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Exports the keys of a Kafka Streams store, in the format that `unseen seed --format capture` reads.
 *
 * <p>Reads the store's changelog topic, so the application need not run. KIND is `window` for a WindowStore and `key-value` for a
 * KeyValueStore. Adapt {@link #addKey} to your key and, for a KeyValueStore, {@link #time} to your values. The keys of one partition must
 * fit into memory (-Xmx).
 *
 * <pre>java -cp "kafka/libs/*" ExportStore.java KIND BROKERS APPLICATION_ID-STORE-changelog emitted.jsonl</pre>
 */
class ExportStore {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Adds the parts of a record that unseen reads: here, for `key = { field = "/order_id" }` and a store with Serdes.String() keys. */
    private static void addKey(Map<String, Object> line, byte[] key, long time) throws JsonProcessingException {
        var text = new String(key, StandardCharsets.UTF_8);
        line.put("key", null); // With `key = { record = "key" }`, text instead of null.
        line.put("payload", JSON.writeValueAsString(Map.of("order_id", text))); // With `time` or `when`, also the fields that they read.
    }

    /** Returns the time of a key in a KeyValueStore: here, its value, in a store with Serdes.Long() values. */
    private static long time(ConsumerRecord<byte[], byte[]> record) {
        return ByteBuffer.wrap(record.value()).getLong(); // If the value is not a time: record.timestamp().
    }

    public static void main(String[] args) throws Exception {
        boolean isWindowStore =
                switch (args[0]) {
                    case "window" -> true;
                    case "key-value" -> false;
                    default -> throw new IllegalArgumentException("expected window or key-value, got " + args[0]);
                };
        Map<String, Object> properties = Map.of("bootstrap.servers", args[1], "isolation.level", "read_committed");
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<>(properties, bytes, bytes); var file = Files.newBufferedWriter(Path.of(args[3]))) {
            for (var found : consumer.partitionsFor(args[2])) {
                var partition = new TopicPartition(args[2], found.partition());
                consumer.assign(List.of(partition));
                consumer.seekToBeginning(List.of(partition));
                long end = consumer.endOffsets(List.of(partition)).get(partition);
                // The changelog may still have the earlier records of a deleted key, so only the last record of a key counts.
                var times = new HashMap<ByteBuffer, Long>();
                while (consumer.position(partition) < end) {
                    for (var record : consumer.poll(Duration.ofSeconds(1))) {
                        var stored = ByteBuffer.wrap(record.key());
                        if (record.value() == null) {
                            times.remove(stored);
                        } else {
                            // A window store appends the start of the window (8 bytes) and a number (4 bytes) to the key.
                            times.put(stored, isWindowStore ? stored.getLong(stored.limit() - 12) : time(record));
                        }
                    }
                }
                for (var entry : times.entrySet()) {
                    var stored = entry.getKey().array();
                    // Changelog and input have the same partitions, unless the application has re-keyed its records.
                    var line = new HashMap<String, Object>();
                    line.put("partition", found.partition());
                    line.put("ts", entry.getValue());
                    addKey(line, isWindowStore ? Arrays.copyOf(stored, stored.length - 12) : stored, entry.getValue());
                    file.write(JSON.writeValueAsString(line) + "\n");
                }
            }
        }
    }
}
