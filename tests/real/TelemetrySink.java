// A plugin for client metrics (KIP-714) in a node of Apache Kafka, and the node's start. Java compiles this file as it
// runs it. The plugin decodes each push with the OpenTelemetry classes that Kafka has, and appends a line of JSON for
// each data point to the file of the property `telemetry.file`.
import java.io.FileWriter;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.Metric;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.MetricsData;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.NumberDataPoint;

public class TelemetrySink implements MetricsReporter, ClientTelemetry {
    public static void main(String[] arguments) {
        Thread.currentThread().setContextClassLoader(TelemetrySink.class.getClassLoader()); // Kafka looks here for plugins
        kafka.Kafka.main(arguments);
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> {
            StringBuilder lines = new StringBuilder();
            try {
                MetricsData data = MetricsData.parseFrom(payload.data());
                data.getResourceMetricsList().forEach(resource -> resource.getScopeMetricsList().forEach(scope ->
                    scope.getMetricsList().forEach(metric -> {
                        List<NumberDataPoint> points =
                            metric.hasSum() ? metric.getSum().getDataPointsList() : metric.getGauge().getDataPointsList();
                        for (NumberDataPoint point : points) {
                            lines.append(line(payload.isTerminating(), metric, point));
                        }
                    })));
            } catch (Exception error) {
                lines.append("{\"error\": \"").append(error.getClass().getName()).append("\"}\n");
            }
            try (FileWriter file = new FileWriter(System.getProperty("telemetry.file"), true)) {
                file.write(lines.toString());
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        };
    }

    private static String line(boolean terminating, Metric metric, NumberDataPoint point) {
        StringBuilder labels = new StringBuilder();
        point.getAttributesList().forEach(
            label -> labels.append(label.getKey()).append('=').append(label.getValue().getStringValue()));
        String temporality = metric.hasSum() ? metric.getSum().getAggregationTemporality().name() : "";
        return String.format(
            "{\"name\": \"%s\", \"value\": %s, \"labels\": \"%s\", \"temporality\": \"%s\", \"terminating\": %s}%n",
            metric.getName(), point.getAsDouble(), labels, temporality, terminating);
    }

    @Override
    public void configure(Map<String, ?> configs) {}

    @Override
    public void init(List<KafkaMetric> metrics) {}

    @Override
    public void metricChange(KafkaMetric metric) {}

    @Override
    public void metricRemoval(KafkaMetric metric) {}

    @Override
    public void close() {}
}
