import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;

/** What librdkafka's admin client cannot ask for: java -cp JARS KafkaAdmin.java BOOTSTRAP reassign|quota ... */
public class KafkaAdmin {
    public static void main(String[] args) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        try (var admin = Admin.create(settings)) {
            if (args[1].equals("reassign")) { // TOPIC PARTITION REPLICA,REPLICA
                var part = new TopicPartition(args[2], Integer.parseInt(args[3]));
                var replicas = Stream.of(args[4].split(",")).map(Integer::valueOf).toList();
                var wanted = Optional.of(new NewPartitionReassignment(replicas));
                admin.alterPartitionReassignments(Map.of(part, wanted)).all().get();
                while (!admin.listPartitionReassignments().reassignments().get().isEmpty()) Thread.sleep(50);
            } else { // CLIENT BYTES_PER_SECOND, or CLIENT none
                var client = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, args[2]));
                var rate = args[3].equals("none") ? null : Double.valueOf(args[3]);
                var change = new ClientQuotaAlteration(client, List.of(new ClientQuotaAlteration.Op("consumer_byte_rate", rate)));
                admin.alterClientQuotas(List.of(change)).all().get();
            }
        }
    }
}
