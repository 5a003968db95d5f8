import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;

/** Asks for the end of a partition, twice a second, as Spark's source does: java KafkaOffsets.java TOPIC SECONDS NAME=VALUE... */
public class KafkaOffsets {
    public static void main(String[] args) throws Exception {
        var settings = new Properties();
        for (int i = 2; i < args.length; i++) {
            int end = args[i].indexOf('=');
            settings.put(args[i].substring(0, end), args[i].substring(end + 1));
        }
        var part = new TopicPartition(args[0], 0);
        long until = System.nanoTime() + Long.parseLong(args[1]) * 1_000_000_000L;
        int answers = 0;
        try (var admin = Admin.create(settings)) {
            for (; System.nanoTime() < until; Thread.sleep(500), answers++) {
                admin.listOffsets(Map.of(part, OffsetSpec.latest())).all().get();
            }
        }
        System.out.println("answers " + answers);
    }
}
