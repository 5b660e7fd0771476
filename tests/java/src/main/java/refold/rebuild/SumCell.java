package refold.rebuild;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.List;

/** The exact sum. */
final class SumCell implements Cell {
  private BigDecimal exact = BigDecimal.ZERO;
  private long count;

  static SumCell unpack(Object packed) {
    List<Object> parts = Tree.list(packed);
    SumCell found = new SumCell();
    found.exact = Numbers.exact(new BigInteger(Tree.bytes(parts.get(0)).array()), Tree.small(parts.get(1)));
    found.count = Tree.number(parts.get(2));
    return found;
  }

  @Override
  public void add(Held assertion) {
    exact = exact.add(Numbers.exact(assertion.value()));
    count++;
  }

  @Override
  public Object value() {
    return Numbers.rounded(exact);
  }

  @Override
  public Object by() {
    return BigInteger.valueOf(count);
  }
}
