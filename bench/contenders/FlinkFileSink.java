import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.formats.avro.typeutils.GenericRecordAvroTypeInfo;
import org.apache.flink.formats.parquet.ParquetWriterFactory;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.filesystem.BucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.OutputFileConfig;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.SimpleVersionedStringSerializer;
import org.apache.parquet.avro.AvroParquetWriter;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;

/** Kafka to hourly folders of Parquet with Flink's FileSink, exactly once, until the end of the topic (bench/flink.py). */
public final class FlinkFileSink {
  /**
   * Arguments: bootstrap servers, topic, file of the schema, field of the event time, column, table, checkpoints, slots,
   * and true to hand objects on without copies and to compress with zstd's level 1, which are not the defaults.
   */
  public static void main(String[] args) throws Exception {
    String schema = Files.readString(Paths.get(args[2]));
    Configuration settings = new Configuration();
    settings.setString("execution.checkpointing.dir", Paths.get(args[6]).toUri().toString());
    boolean tuned = Boolean.parseBoolean(args[8]);
    settings.setString("pipeline.object-reuse", String.valueOf(tuned));
    StreamExecutionEnvironment flink =
        StreamExecutionEnvironment.createLocalEnvironment(Integer.parseInt(args[7]), settings);
    flink.enableCheckpointing(10_000, CheckpointingMode.EXACTLY_ONCE);
    KafkaSource<GenericRecord> source =
        KafkaSource.<GenericRecord>builder()
            .setBootstrapServers(args[0])
            .setTopics(args[1])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new ConfluentAvro(schema))
            .build();
    FileSink<GenericRecord> sink =
        FileSink.forBulkFormat(new Path(Paths.get(args[5]).toUri()), zstdParquet(schema, tuned ? 1 : 3))
            .withBucketAssigner(new Hours(args[3], args[4]))
            .withOutputFileConfig(OutputFileConfig.builder().withPartSuffix(".parquet").build())
            .build();
    flink
        .fromSource(source, WatermarkStrategy.noWatermarks(), "kafka")
        .map(new Marks())
        .returns(new GenericRecordAvroTypeInfo(new Schema.Parser().parse(schema)))
        .sinkTo(sink);
    flink.execute("bench");
  }

  private static ParquetWriterFactory<GenericRecord> zstdParquet(String schema, int level) {
    return new ParquetWriterFactory<>(
        out ->
            AvroParquetWriter.<GenericRecord>builder(out)
                .withSchema(new Schema.Parser().parse(schema))
                .withDataModel(GenericData.get())
                .withCompressionCodec(CompressionCodecName.ZSTD)
                .config("parquet.compression.codec.zstd.level", String.valueOf(level))
                .build());
  }

  /** Values behind Confluent's header, all of one schema. */
  private static final class ConfluentAvro implements DeserializationSchema<GenericRecord> {
    private static final int HEADER_BYTES = 5;
    private final String text;
    private transient GenericDatumReader<GenericRecord> reader;
    private transient BinaryDecoder decoder;

    ConfluentAvro(String text) {
      this.text = text;
    }

    @Override
    public void open(InitializationContext context) {
      reader = new GenericDatumReader<>(new Schema.Parser().parse(text));
    }

    @Override
    public GenericRecord deserialize(byte[] value) throws IOException {
      decoder = DecoderFactory.get().binaryDecoder(value, HEADER_BYTES, value.length - HEADER_BYTES, decoder);
      return reader.read(null, decoder);
    }

    @Override
    public boolean isEndOfStream(GenericRecord next) {
      return false;
    }

    @Override
    public TypeInformation<GenericRecord> getProducedType() {
      return new GenericRecordAvroTypeInfo(new Schema.Parser().parse(text));
    }
  }

  /** A folder for each hour of the event time, which is in milliseconds. */
  private static final class Hours implements BucketAssigner<GenericRecord, String> {
    private static final long HOUR_MS = 3_600_000;
    private final String field;
    private final String column;
    private transient long hour;
    private transient String folder;

    Hours(String field, String column) {
      this.field = field;
      this.column = column;
    }

    @Override
    public String getBucketId(GenericRecord event, Context context) {
      long now = Math.floorDiv((Long) event.get(field), HOUR_MS);
      if (folder == null || now != hour) {
        hour = now;
        folder = column + "=" + Instant.ofEpochMilli(now * HOUR_MS).truncatedTo(ChronoUnit.HOURS).toString().substring(0, 13);
      }
      return folder;
    }

    @Override
    public SimpleVersionedSerializer<String> getSerializer() {
      return SimpleVersionedStringSerializer.INSTANCE;
    }
  }

  /** Counts events, and says at each checkpoint that is complete how many came before it in all subtasks. */
  private static final class Marks extends RichMapFunction<GenericRecord, GenericRecord>
      implements CheckpointedFunction, CheckpointListener {
    // All subtasks run in this JVM.
    private static final CheckpointMarks MARKS = new CheckpointMarks(System.out);
    private transient long events;

    @Override
    public GenericRecord map(GenericRecord event) {
      events++;
      return event;
    }

    @Override
    public void initializeState(FunctionInitializationContext context) {}

    @Override
    public void snapshotState(FunctionSnapshotContext context) { // after the sink, in the same chain, has closed its files
      MARKS.add(getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(), context.getCheckpointId(), events);
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) {
      MARKS.complete(checkpoint);
    }
  }
}
