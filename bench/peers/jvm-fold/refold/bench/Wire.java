package refold.bench;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

/** Records of one schema to and from bytes, for one thread; decoder, encoder and buffer are used again. */
final class Wire {
    private final GenericDatumReader<GenericRecord> reader;
    private final GenericDatumWriter<GenericRecord> writer;
    private final ByteArrayOutputStream buffer = new ByteArrayOutputStream(512);
    private BinaryDecoder decoder;
    private BinaryEncoder encoder;

    Wire(Schema schema) {
        reader = new GenericDatumReader<>(schema);
        writer = new GenericDatumWriter<>(schema);
    }

    /** The record that begins at an offset of the bytes. */
    GenericRecord read(byte[] data, int from) {
        decoder = DecoderFactory.get().binaryDecoder(data, from, data.length - from, decoder);
        try {
            return reader.read(null, decoder);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    byte[] write(GenericRecord record) {
        buffer.reset();
        encoder = EncoderFactory.get().binaryEncoder(buffer, encoder);
        try {
            writer.write(record, encoder);
            encoder.flush();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return buffer.toByteArray();
    }
}
