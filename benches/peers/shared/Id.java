import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.UncheckedIOException;

/** The field "id" of a JSON object. Parses the object only up to that field. */
final class Id {
    private final JsonFactory json = new JsonFactory();

    String of(byte[] value) {
        try (JsonParser parser = json.createParser(value)) {
            parser.nextToken();
            while (parser.nextToken() == JsonToken.FIELD_NAME) {
                var wanted = parser.currentName().equals("id");
                parser.nextToken();
                if (wanted) {
                    return parser.getText();
                }
                parser.skipChildren();
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        throw new IllegalArgumentException("the record has no id");
    }
}
