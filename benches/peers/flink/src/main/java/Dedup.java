import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFilterFunction;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Typical deduplication in Flink: a stream keyed by id, and a value with a time to live per id, in RocksDB.
 *
 * <p>Optimizations in favor of Flink: objects are reused, the JSON is parsed once and only up to the id, and batches are large
 * and compressed.
 */
public final class Dedup {
    /** Arguments: broker, input, output, group, directory, milliseconds between checkpoints, parallelism, hours of the window. */
    public static void main(String[] args) throws Exception {
        var settings = Configuration.fromMap(Map.of(
                "state.backend.type", "rocksdb",
                "state.backend.rocksdb.localdir", args[4] + "/local",
                "io.tmp.dirs", args[4] + "/local",
                "execution.checkpointing.dir", "file://" + args[4] + "/state",
                "execution.checkpointing.incremental", "true",
                "execution.checkpointing.interval", args[5] + "ms",
                "execution.checkpointing.mode", "EXACTLY_ONCE",
                "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION",
                "taskmanager.memory.managed.size", "512m",
                "restart-strategy.type", "none"));
        var environment = StreamExecutionEnvironment.createLocalEnvironment(Integer.parseInt(args[6]), settings);
        environment.getConfig().enableObjectReuse();
        var source = KafkaSource.<Tuple2<String, byte[]>>builder()
                .setBootstrapServers(args[0])
                .setTopics(args[1])
                .setGroupId(args[3])
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setDeserializer(new Reader())
                .build();
        var sink = KafkaSink.<Tuple2<String, byte[]>>builder()
                .setBootstrapServers(args[0])
                .setRecordSerializer(new Writer(args[2]))
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(args[3])
                .setProperty("transaction.timeout.ms", "600000")
                .setProperty("compression.type", "lz4")
                .setProperty("batch.size", "262144")
                .setProperty("linger.ms", "5")
                .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "input")
                .keyBy(record -> record.f0, Types.STRING)
                .filter(new Unseen(Duration.ofHours(Long.parseLong(args[7]))))
                .sinkTo(sink);
        environment.execute("dedup");
    }

    private static final class Unseen extends RichFilterFunction<Tuple2<String, byte[]>> {
        private final Duration window;
        private transient ValueState<Boolean> seen;

        Unseen(Duration window) {
            this.window = window;
        }

        @Override
        public void open(OpenContext context) {
            var descriptor = new ValueStateDescriptor<>("seen", Types.BOOLEAN);
            descriptor.enableTimeToLive(StateTtlConfig.newBuilder(window).build());
            seen = getRuntimeContext().getState(descriptor);
        }

        @Override
        public boolean filter(Tuple2<String, byte[]> record) throws IOException {
            if (seen.value() != null) {
                return false;
            }
            seen.update(true);
            return true;
        }
    }

    private static final class Reader implements KafkaRecordDeserializationSchema<Tuple2<String, byte[]>> {
        private transient Id id;

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, byte[]>> out) throws IOException {
            if (id == null) {
                id = new Id();
            }
            out.collect(Tuple2.of(id.of(record.value()), record.value()));
        }

        @Override
        public TypeInformation<Tuple2<String, byte[]>> getProducedType() {
            return Types.TUPLE(Types.STRING, Types.PRIMITIVE_ARRAY(Types.BYTE));
        }
    }

    private static final class Writer implements KafkaRecordSerializationSchema<Tuple2<String, byte[]>> {
        private final String topic;

        Writer(String topic) {
            this.topic = topic;
        }

        @Override
        public ProducerRecord<byte[], byte[]> serialize(Tuple2<String, byte[]> record, KafkaSinkContext context, Long timestamp) {
            return new ProducerRecord<>(topic, null, timestamp, record.f0.getBytes(StandardCharsets.UTF_8), record.f1);
        }
    }
}
