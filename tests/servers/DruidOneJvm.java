import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

/**
 * Several roles of Druid in one JVM, each in its own class loader, which takes a fraction of the memory of five:
 * {@code java DruidOneJvm <lib> <conf> <role>...}, where "zk" is ZooKeeper, from the same jars.
 *
 * Druid reads its properties through the system class loader: so they are handed over as system properties, and the
 * roles are started one after the other.
 */
public class DruidOneJvm {
  public static void main(String[] args) throws Exception {
    File conf = new File(args[1]);
    List<URL> jars = new ArrayList<>();
    for (File file : new File(args[0]).listFiles()) {
      if (file.getName().endsWith(".jar")) {
        jars.add(file.toURI().toURL());
      }
    }
    for (int i = 2; i < args.length; i++) {
      String role = args[i];
      boolean zk = role.equals("zk");
      List<URL> path = new ArrayList<>();
      path.add(new File(conf, "_common").toURI().toURL());
      path.add(new File(conf, role).toURI().toURL());
      path.addAll(jars);
      Properties properties = zk ? new Properties() : read(conf, "_common/common.runtime.properties", role + "/runtime.properties");
      properties.stringPropertyNames().forEach(key -> System.setProperty(key, properties.getProperty(key)));
      ClassLoader loader = new URLClassLoader(role, path.toArray(new URL[0]), ClassLoader.getPlatformClassLoader());
      String main = zk ? "org.apache.zookeeper.server.ZooKeeperServerMain" : "org.apache.druid.cli.Main";
      String[] words = zk ? new String[] {conf + "/zoo.cfg"} : new String[] {"server", role};
      Thread thread = new Thread(() -> run(loader, main, words), role);
      thread.setContextClassLoader(loader);
      thread.start();
      if (zk) {
        Thread.sleep(1000);
        continue;
      }
      await(Integer.parseInt(properties.getProperty("druid.plaintextPort")));
      properties.stringPropertyNames().forEach(System::clearProperty);
    }
  }

  private static void run(ClassLoader loader, String main, String[] words) {
    try {
      loader.loadClass(main).getMethod("main", String[].class).invoke(null, (Object) words);
    } catch (Throwable error) {
      error.printStackTrace();
      System.exit(1);
    }
  }

  private static Properties read(File conf, String... names) throws IOException {
    Properties properties = new Properties();
    for (String name : names) {
      try (InputStream in = new FileInputStream(new File(conf, name))) {
        properties.load(in);
      }
    }
    return properties;
  }

  private static void await(int port) throws InterruptedException {
    for (int n = 0; n < 1200; n++) {
      Thread.sleep(100);
      try (Socket socket = new Socket("127.0.0.1", port)) {
        return;
      } catch (IOException error) {
        continue;
      }
    }
  }
}
