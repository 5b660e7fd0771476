package refold.rebuild;

import java.math.BigInteger;

/** How many assertions there are. */
final class CountCell implements Cell {
  private long count;

  static CountCell unpack(Object packed) {
    CountCell found = new CountCell();
    found.count = Tree.number(Tree.list(packed).get(0));
    return found;
  }

  @Override
  public void add(Held assertion) {
    count++;
  }

  @Override
  public Object value() {
    return BigInteger.valueOf(count);
  }

  @Override
  public Object by() {
    return value();
  }
}
