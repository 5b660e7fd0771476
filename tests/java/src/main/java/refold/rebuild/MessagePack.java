package refold.rebuild;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads MessagePack, of which encoded entities are made. */
final class MessagePack {
  private MessagePack() {}

  static Object decode(Bytes encoded) {
    ByteBuffer in = ByteBuffer.wrap(encoded.array());
    Object tree = read(in);
    if (in.hasRemaining()) {
      throw new DamagedException("bytes behind the end of the MessagePack");
    }
    return tree;
  }

  private static Object read(ByteBuffer in) {
    int first = in.get() & 0xff;
    if (first < 0x80) {
      return BigInteger.valueOf(first);
    }
    if (first < 0x90) {
      return map(in, first & 0x0f);
    }
    if (first < 0xa0) {
      return list(in, first & 0x0f);
    }
    if (first < 0xc0) {
      return bytes(in, first & 0x1f).text();
    }
    if (first >= 0xe0) {
      return BigInteger.valueOf((byte) first);
    }
    return switch (first) {
      case 0xc0 -> null;
      case 0xc2 -> false;
      case 0xc3 -> true;
      case 0xc4, 0xc5, 0xc6 -> bytes(in, unsigned(in, 1 << first - 0xc4).intValueExact());
      case 0xca -> (double) in.getFloat();
      case 0xcb -> in.getDouble();
      case 0xcc, 0xcd, 0xce, 0xcf -> unsigned(in, 1 << first - 0xcc);
      case 0xd0, 0xd1, 0xd2, 0xd3 -> new BigInteger(bytes(in, 1 << first - 0xd0).array());
      case 0xd9, 0xda, 0xdb -> bytes(in, unsigned(in, 1 << first - 0xd9).intValueExact()).text();
      case 0xdc, 0xdd -> list(in, unsigned(in, 2 << first - 0xdc).intValueExact());
      case 0xde, 0xdf -> map(in, unsigned(in, 2 << first - 0xde).intValueExact());
      default -> throw new DamagedException("MessagePack that begins with " + first);
    };
  }

  private static List<Object> list(ByteBuffer in, int size) {
    List<Object> found = new ArrayList<>();
    for (int left = size; left > 0; left--) {
      found.add(read(in));
    }
    return found;
  }

  private static Map<Object, Object> map(ByteBuffer in, int size) {
    Map<Object, Object> found = new LinkedHashMap<>();
    for (int left = size; left > 0; left--) {
      found.put(read(in), read(in));
    }
    return found;
  }

  private static BigInteger unsigned(ByteBuffer in, int size) {
    return new BigInteger(1, bytes(in, size).array());
  }

  private static Bytes bytes(ByteBuffer in, int size) {
    byte[] found = new byte[size];
    in.get(found);
    return new Bytes(found);
  }
}
