// Fills a topic for scripts/bench-serve: java -cp 'KAFKA/*' Fill.java BROKERS TOPIC PARTITIONS ITEMS WINDOW_MS
//
// The records' keys are the keys that redis-benchmark queries: key:000000000000 and so on. Their times are spread evenly over the window,
// which ends now. All slices of a filter then contain the same number of keys.

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class Fill {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> brokers = Map.of("bootstrap.servers", arguments[0]);
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        long items = Long.parseLong(arguments[3]);
        long window = Long.parseLong(arguments[4]);
        try (Admin admin = Admin.create(brokers)) {
            NewTopic input = new NewTopic(topic, partitions, (short) 1);
            admin.createTopics(List.of(input, new NewTopic(topic + "-out", partitions, (short) 1))).all().get();
        }
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "compression.type", "lz4", "linger.ms", 20,
            "batch.size", 1 << 18, "buffer.memory", 64L << 20);
        byte[] value = {'1'};
        long begin = System.currentTimeMillis() - window;
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (long item = 0; item < items; item++) {
                // The default partitioner: murmur2 of the key.
                producer.send(new ProducerRecord<>(topic, null, begin + item * window / items, key(item), value), (sent, error) -> {
                    if (error != null) {
                        error.printStackTrace();
                        System.exit(1);
                    }
                });
            }
        }
    }

    private static byte[] key(long item) {
        byte[] key = "key:000000000000".getBytes(StandardCharsets.US_ASCII);
        for (int at = key.length - 1; item > 0; at--, item /= 10) {
            key[at] += (byte) (item % 10);
        }
        return key;
    }
}
