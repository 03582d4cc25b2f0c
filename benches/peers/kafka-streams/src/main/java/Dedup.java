import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Typical deduplication in Kafka Streams: a window store in RocksDB, with a lookup of each record's id.
 *
 * <p>Optimizations in favor of Kafka Streams: a duplicate does not renew the window of its id, which would be a second
 * write. The JSON is parsed only up to the id. Batches are large and compressed.
 */
public final class Dedup {
    private static final String STORE = "seen";

    /** Arguments: broker, input, output, group, directory, milliseconds between commits, threads, hours of the window. */
    public static void main(String[] args) {
        var properties = new Properties();
        properties.putAll(Map.of(
                "bootstrap.servers", args[0],
                "application.id", args[3],
                "state.dir", args[4] + "/state",
                "commit.interval.ms", args[5],
                "num.stream.threads", args[6],
                "processing.guarantee", "exactly_once_v2",
                "consumer.auto.offset.reset", "earliest",
                "producer.compression.type", "lz4",
                "producer.batch.size", "262144"));
        var window = Duration.ofHours(Long.parseLong(args[7]));
        var builder = new StreamsBuilder();
        builder.stream(args[1], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .processValues(new Unseen(window))
                .to(args[2], Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        var streams = new KafkaStreams(builder.build(), properties);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private record Unseen(Duration window) implements FixedKeyProcessorSupplier<byte[], byte[], byte[]> {
        @Override
        public FixedKeyProcessor<byte[], byte[], byte[]> get() {
            return new Filter(window);
        }

        @Override
        public Set<StoreBuilder<?>> stores() {
            var store = Stores.persistentWindowStore(STORE, window, window, false);
            return Set.of(Stores.windowStoreBuilder(store, Serdes.String(), Serdes.Long()));
        }
    }

    private static final class Filter extends ContextualFixedKeyProcessor<byte[], byte[], byte[]> {
        private final Id id = new Id();
        private final long window;
        private WindowStore<String, Long> seen;

        Filter(Duration window) {
            this.window = window.toMillis();
        }

        @Override
        public void init(FixedKeyProcessorContext<byte[], byte[]> context) {
            super.init(context);
            seen = context.getStateStore(STORE);
        }

        @Override
        public void process(FixedKeyRecord<byte[], byte[]> record) {
            var key = id.of(record.value());
            try (var found = seen.fetch(key, record.timestamp() - window, record.timestamp())) {
                if (found.hasNext()) {
                    return;
                }
            }
            seen.put(key, record.timestamp(), record.timestamp());
            context().forward(record);
        }
    }
}
