import java.io.FileInputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;

/** Prints the subjects of certificates as Kafka names their principals, one per line. */
public class Subject {
    public static void main(String[] files) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String file : files) {
            try (FileInputStream in = new FileInputStream(file)) {
                X509Certificate certificate =
                    (X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(in);
                out.println(certificate.getSubjectX500Principal().getName());
            }
        }
    }
}
