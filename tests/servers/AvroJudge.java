import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

/**
 * Reads Avro values with Avro's own library, and writes back what it read.
 *
 * A request is a schema and values, each behind its length: 4 bytes of text, a count, values. An answer is a byte, 1 where
 * the library takes the schema, and for each value the length of the value as the library writes it, and its bytes; -1
 * where the library refuses the schema or the value, or leaves bytes over. Of a schema, neither names nor defaults are
 * validated: no value depends on them.
 */
public class AvroJudge {
  /** Arrays as lists: the library's own array of doubles, as of 1.12.0, holds floats. */
  private static final GenericData LISTS = new GenericData() {
    @Override
    public Object newArray(Object old, int size, Schema schema) {
      return new ArrayList<Object>();
    }
  };

  public static void main(String[] args) throws Exception {
    DataInputStream in = new DataInputStream(System.in);
    while (true) {
      byte[] text;
      try {
        text = in.readNBytes(in.readInt());
      } catch (EOFException end) {
        return;
      }
      Schema schema = parse(new String(text, StandardCharsets.UTF_8));
      GenericDatumReader<Object> reader = schema == null ? null : new GenericDatumReader<>(schema, schema, LISTS);
      GenericDatumWriter<Object> writer = schema == null ? null : new GenericDatumWriter<>(schema);
      ByteArrayOutputStream answer = new ByteArrayOutputStream();
      DataOutputStream out = new DataOutputStream(answer);
      out.writeByte(schema == null ? 0 : 1);
      for (int left = in.readInt(); left > 0; left--) {
        byte[] value = in.readNBytes(in.readInt());
        byte[] written = schema == null ? null : rewrite(value, reader, writer);
        out.writeInt(written == null ? -1 : written.length);
        if (written != null) {
          out.write(written);
        }
      }
      answer.writeTo(System.out);
      System.out.flush();
    }
  }

  private static Schema parse(String text) {
    try {
      Schema schema = new Schema.Parser(NameValidator.NO_VALIDATION).setValidateDefaults(false).parse(text);
      schema.toString(); // names that stand before their types are looked up as late as this
      return schema;
    } catch (RuntimeException | StackOverflowError refusal) {
      return null;
    }
  }

  private static byte[] rewrite(byte[] value, GenericDatumReader<Object> reader, GenericDatumWriter<Object> writer)
      throws Exception {
    Object datum;
    try {
      BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(value, null);
      datum = reader.read(null, decoder);
      if (!decoder.isEnd()) {
        return null;
      }
    } catch (Exception | OutOfMemoryError refusal) {
      return null;
    }
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
    writer.write(datum, encoder);
    encoder.flush();
    return bytes.toByteArray();
  }
}
