import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
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
 * A request is a schema and values, each behind its length: 4 bytes of text, a count, values. An answer is, for each value, the length of the value as the library writes it, and its bytes; -1
 * where the library refuses the value or leaves bytes over.
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
      Schema schema = new Schema.Parser().parse(new String(text, StandardCharsets.UTF_8));
      GenericDatumReader<Object> reader = new GenericDatumReader<>(schema, schema, LISTS);
      GenericDatumWriter<Object> writer = new GenericDatumWriter<>(schema);
      ByteArrayOutputStream answer = new ByteArrayOutputStream();
      DataOutputStream out = new DataOutputStream(answer);
      for (int left = in.readInt(); left > 0; left--) {
        byte[] written = rewrite(in.readNBytes(in.readInt()), reader, writer);
        out.writeInt(written == null ? -1 : written.length);
        if (written != null) {
          out.write(written);
        }
      }
      answer.writeTo(System.out);
      System.out.flush();
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
