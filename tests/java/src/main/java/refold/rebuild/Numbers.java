package refold.rebuild;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;

/** Canonical numbers: integers of [-2^63, 2^64) are BigInteger, all others Double. */
final class Numbers {
  private static final BigInteger LEAST = BigInteger.TWO.pow(63).negate();
  private static final BigInteger END = BigInteger.TWO.pow(64);
  private static final BigDecimal HALF = new BigDecimal("0.5");

  private Numbers() {}

  static Object canonical(double value) {
    if (!Double.isFinite(value)) {
      throw new DamagedException(value + " is no value");
    }
    if (value == Math.rint(value)) {
      BigInteger integer = new BigDecimal(value).toBigIntegerExact();
      if (isInRange(integer)) {
        return integer;
      }
    }
    return value;
  }

  /** The nearest canonical number of an exact one; past the doubles the greatest of that sign. */
  static Object rounded(BigDecimal exact) {
    if (exact.stripTrailingZeros().scale() <= 0) {
      BigInteger integer = exact.toBigIntegerExact();
      if (isInRange(integer)) {
        return integer;
      }
    }
    double nearest = exact.doubleValue();
    return canonical(Double.isFinite(nearest) ? nearest : Math.copySign(Double.MAX_VALUE, nearest));
  }

  static BigDecimal exact(Object number) {
    return number instanceof BigInteger integer ? new BigDecimal(integer) : new BigDecimal((Double) number);
  }

  /** numerator / 2^shift. */
  static BigDecimal exact(BigInteger numerator, int shift) {
    return new BigDecimal(numerator).multiply(HALF.pow(shift, MathContext.UNLIMITED));
  }

  /** Numbers by value, texts by their UTF-8. */
  static int compare(Object one, Object other) {
    if (one instanceof String text) {
      return Bytes.of(text).compareTo(Bytes.of((String) other));
    }
    return exact(one).compareTo(exact(other));
  }

  private static boolean isInRange(BigInteger integer) {
    return integer.compareTo(LEAST) >= 0 && integer.compareTo(END) < 0;
  }
}
