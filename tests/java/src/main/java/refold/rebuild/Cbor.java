package refold.rebuild;

import java.io.ByteArrayOutputStream;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** "Deterministic CBOR" of docs/FORMAT.md. */
final class Cbor {
  private static final int UNSIGNED = 0;
  private static final int NEGATIVE = 1;
  private static final int BYTES = 2;
  private static final int TEXT = 3;
  private static final int LIST = 4;
  private static final int MAP = 5;
  private static final int FALSE = 0xf4;
  private static final int TRUE = 0xf5;
  private static final int NULL = 0xf6;
  private static final int HALF = 0xf9;
  private static final int SINGLE = 0xfa;
  private static final int DOUBLE = 0xfb;

  private Cbor() {}

  static Bytes encode(Object tree) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    write(out, tree);
    return new Bytes(out.toByteArray());
  }

  static Object decode(Bytes encoded) {
    ByteBuffer in = ByteBuffer.wrap(encoded.array());
    Object tree = read(in);
    if (in.hasRemaining()) {
      throw new DamagedException("bytes behind the end of the CBOR");
    }
    return tree;
  }

  private static void write(ByteArrayOutputStream out, Object tree) {
    if (tree == null) {
      out.write(NULL);
    } else if (tree instanceof Boolean value) {
      out.write(value ? TRUE : FALSE);
    } else if (tree instanceof BigInteger value) {
      boolean isNegative = value.signum() < 0;
      head(out, isNegative ? NEGATIVE : UNSIGNED, (isNegative ? value.not() : value).longValue());
    } else if (tree instanceof Double value) {
      real(out, value);
    } else if (tree instanceof Bytes value) {
      head(out, BYTES, value.size());
      out.writeBytes(value.array());
    } else if (tree instanceof String value) {
      Bytes utf8 = Bytes.of(value);
      head(out, TEXT, utf8.size());
      out.writeBytes(utf8.array());
    } else if (tree instanceof List<?> value) {
      head(out, LIST, value.size());
      value.forEach(each -> write(out, each));
    } else if (tree instanceof Map<?, ?> value) {
      TreeMap<Bytes, Object> sorted = new TreeMap<>();
      value.forEach((key, each) -> sorted.put(encode(key), each));
      head(out, MAP, sorted.size());
      sorted.forEach((key, each) -> {
        out.writeBytes(key.array());
        write(out, each);
      });
    } else {
      throw new IllegalArgumentException("no canonical value: " + tree.getClass());
    }
  }

  /** A type, and a number that is not signed. */
  private static void head(ByteArrayOutputStream out, int major, long number) {
    int first = major << 5;
    if (number >= 0 && number < 24) {
      out.write(first + (int) number);
    } else if (number >>> 8 == 0) {
      out.write(first + 24);
      out.write((int) number);
    } else if (number >>> 16 == 0) {
      out.write(first + 25);
      out.writeBytes(ByteBuffer.allocate(2).putShort((short) number).array());
    } else if (number >>> 32 == 0) {
      out.write(first + 26);
      out.writeBytes(ByteBuffer.allocate(4).putInt((int) number).array());
    } else {
      out.write(first + 27);
      out.writeBytes(ByteBuffer.allocate(8).putLong(number).array());
    }
  }

  private static void real(ByteArrayOutputStream out, double value) {
    float single = (float) value;
    if (single != value) {
      out.write(DOUBLE);
      out.writeBytes(ByteBuffer.allocate(8).putDouble(value).array());
      return;
    }
    int half = half(single);
    if (half < 0) {
      out.write(SINGLE);
      out.writeBytes(ByteBuffer.allocate(4).putFloat(single).array());
    } else {
      out.write(HALF);
      out.writeBytes(ByteBuffer.allocate(2).putShort((short) half).array());
    }
  }

  /** The 16 bits of a float, or -1 where they do not hold it. Zeros are integers, and never come here. */
  private static int half(float value) {
    int bits = Float.floatToIntBits(value);
    int sign = bits >>> 16 & 0x8000;
    int exponent = Math.getExponent(value);
    int mantissa = bits & 0x7fffff;
    if (exponent >= -14 && exponent <= 15) {
      return (mantissa & 0x1fff) == 0 ? sign | exponent + 15 << 10 | mantissa >> 13 : -1;
    }
    if (exponent >= -24 && exponent < -14) {
      int whole = mantissa | 0x800000;
      int dropped = -1 - exponent;
      return (whole & (1 << dropped) - 1) == 0 ? sign | whole >> dropped : -1;
    }
    return -1;
  }

  private static Object read(ByteBuffer in) {
    int first = in.get() & 0xff;
    switch (first) {
      case FALSE:
        return false;
      case TRUE:
        return true;
      case NULL:
        return null;
      case DOUBLE:
        return in.getDouble();
      case SINGLE:
        return (double) in.getFloat();
      default:
        break;
    }
    BigInteger number = number(in, first & 0x1f);
    switch (first >> 5) {
      case UNSIGNED:
        return number;
      case NEGATIVE:
        return number.not();
      case BYTES:
        return bytes(in, number.intValueExact());
      case TEXT:
        return bytes(in, number.intValueExact()).text();
      case LIST:
        List<Object> list = new ArrayList<>();
        for (int left = number.intValueExact(); left > 0; left--) {
          list.add(read(in));
        }
        return list;
      case MAP:
        Map<Object, Object> map = new LinkedHashMap<>();
        for (int left = number.intValueExact(); left > 0; left--) {
          map.put(read(in), read(in));
        }
        return map;
      default:
        throw new DamagedException("CBOR that begins with " + first);
    }
  }

  private static BigInteger number(ByteBuffer in, int additional) {
    if (additional < 24) {
      return BigInteger.valueOf(additional);
    }
    if (additional > 27) {
      throw new DamagedException("CBOR with the additional information " + additional);
    }
    return new BigInteger(1, bytes(in, 1 << additional - 24).array());
  }

  private static Bytes bytes(ByteBuffer in, int count) {
    byte[] found = new byte[count];
    in.get(found);
    return new Bytes(found);
  }
}
