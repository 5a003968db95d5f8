import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;

/**
 * Asks for the end of a partition, twice a second, as Spark's source does: java KafkaOffsets.java TOPIC SECONDS NAME=VALUE...
 * It ends so many seconds after the first answer.
 * After a failure it asks with another client, as Spark does, and prints why. Each answer is a line with its time in
 * milliseconds since the epoch.
 */
public class KafkaOffsets {
    public static void main(String[] args) throws Exception {
        var settings = new Properties();
        for (int i = 2; i < args.length; i++) {
            int end = args[i].indexOf('=');
            settings.put(args[i].substring(0, end), args[i].substring(end + 1));
        }
        var part = new TopicPartition(args[0], 0);
        long seconds = Long.parseLong(args[1]);
        long until = Long.MAX_VALUE;
        Admin admin = null;
        while (System.nanoTime() < until) {
            try {
                if (admin == null) {
                    admin = Admin.create(settings);
                }
                admin.listOffsets(Map.of(part, OffsetSpec.latest())).all().get();
                System.out.println("answer " + System.currentTimeMillis());
                if (until == Long.MAX_VALUE) {
                    until = System.nanoTime() + seconds * 1_000_000_000L;
                }
            } catch (Exception error) {
                System.out.println("failure " + System.currentTimeMillis() + " " + error);
                if (admin != null) {
                    admin.close();
                    admin = null;
                }
            }
            Thread.sleep(500);
        }
        if (admin != null) {
            admin.close();
        }
    }
}
