package refold.rebuild;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;

/** Bytes as a value: equal by their content, ordered as unsigned numbers. */
record Bytes(byte[] array) implements Comparable<Bytes> {
  static final Bytes EMPTY = new Bytes(new byte[0]);

  static Bytes of(String text) {
    return new Bytes(text.getBytes(StandardCharsets.UTF_8));
  }

  int size() {
    return array.length;
  }

  Bytes slice(int start, int end) {
    return new Bytes(Arrays.copyOfRange(array, start, end));
  }

  Bytes last(int count) {
    return slice(array.length - count, array.length);
  }

  String text() {
    return new String(array, StandardCharsets.UTF_8);
  }

  @Override
  public int compareTo(Bytes other) {
    return Arrays.compareUnsigned(array, other.array);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Bytes bytes && Arrays.equals(array, bytes.array);
  }

  @Override
  public int hashCode() {
    return Arrays.hashCode(array);
  }

  @Override
  public String toString() {
    return HexFormat.of().formatHex(array);
  }
}
