// Runs the command line tools of Kafka's distribution one after the other in one JVM, which starts in the time of one.
//
//     java -cp 'JARS/*' Tools.java
//
// Reads one JSON object a line: {"tool": CLASS, "arguments": […], "input": TEXT}, calls the tool's main and answers with one
// line: {"exit": CODE, "out": TEXT, "error": TEXT}. Ends with its input.
//
// Tools leave by Kafka's own Exit, which can be replaced: here it throws. Some catch what is thrown and leave a second
// time, hence the first code counts. What they leave to the JVM's end (a producer to close, say) is done when they end, and
// belongs to their output. Standard output is one stream for the whole life of the JVM whose target changes,
// because Scala's Console keeps what it finds at its start.

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.common.utils.Exit;

public class Tools {
    static final class Left extends Error {
        Left(int code) {
            super("left with code " + code, null, false, false);
        }
    }

    static final class Swapped extends OutputStream {
        volatile OutputStream target;

        Swapped(OutputStream target) {
            this.target = target;
        }

        @Override
        public void write(int octet) throws IOException {
            target.write(octet);
        }

        @Override
        public void write(byte[] octets, int start, int length) throws IOException {
            target.write(octets, start, length);
        }

        @Override
        public void flush() throws IOException {
            target.flush();
        }
    }

    static final List<Runnable> hooks = new ArrayList<>();
    static volatile Integer code;

    static void leave(int status) {
        synchronized (Tools.class) {
            if (code == null) code = status;
        }
        throw new Left(status);
    }

    static void run(JsonNode command) throws Exception {
        List<String> arguments = new ArrayList<>();
        command.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        var main = Class.forName(command.get("tool").asText()).getMethod("main", String[].class);
        try {
            main.invoke(null, (Object) arguments.toArray(String[]::new));
        } catch (InvocationTargetException failure) {
            if (failure.getCause() instanceof Left) return;
            failure.getCause().printStackTrace();
            code = 1;
        }
    }

    public static void main(String[] none) throws Exception {
        var mapper = new ObjectMapper();
        var answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        var commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new Swapped(OutputStream.nullOutputStream());
        var error = new Swapped(OutputStream.nullOutputStream());
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(error, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((status, message) -> leave(status));
        Exit.setHaltProcedure((status, message) -> leave(status));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = mapper.readTree(line);
            code = null;
            out.target = new ByteArrayOutputStream();
            error.target = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(command.get("input").asText().getBytes(StandardCharsets.UTF_8)));
            run(command);
            hooks.forEach(Runnable::run);
            hooks.clear();
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("exit", code == null ? 0 : code);
            answer.put("out", out.target.toString());
            answer.put("error", error.target.toString());
            answers.println(mapper.writeValueAsString(answer));
        }
        System.exit(0);
    }
}
