import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Exports the keys of a Kafka Streams window store, in the format that `unseen seed --format capture` reads.
 *
 * <p>Reads the store's changelog topic, so the application need not run. Adapt {@link #value} to your key.
 *
 * <pre>java -cp "kafka/libs/*" ExportWindowStore.java BROKERS APPLICATION_ID-STORE-changelog emitted.jsonl</pre>
 */
class ExportWindowStore {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Returns a value in which unseen finds the key. This one is for `key = { field = "/order_id" }` and a store with Serdes.String(). */
    private static Map<String, Object> value(byte[] key) {
        return Map.of("order_id", new String(key, StandardCharsets.UTF_8));
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> properties = Map.of("bootstrap.servers", args[0], "isolation.level", "read_committed");
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<>(properties, bytes, bytes); var file = Files.newBufferedWriter(Path.of(args[2]))) {
            var partitions =
                    consumer.partitionsFor(args[1]).stream().map(found -> new TopicPartition(args[1], found.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    if (record.value() == null) {
                        continue;
                    }
                    // A key of the changelog is the key, the start of its window (8 bytes), and a number (4 bytes).
                    var stored = ByteBuffer.wrap(record.key());
                    var key = new byte[stored.remaining() - 12];
                    stored.get(key);
                    // Changelog and input have the same partitions, unless the application has re-keyed its records.
                    var line = new HashMap<String, Object>();
                    line.put("partition", record.partition());
                    line.put("ts", stored.getLong());
                    line.put("key", null);
                    line.put("payload", JSON.writeValueAsString(value(key)));
                    file.write(JSON.writeValueAsString(line) + "\n");
                }
            }
        }
    }
}
