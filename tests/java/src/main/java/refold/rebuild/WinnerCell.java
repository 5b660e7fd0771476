package refold.rebuild;

import java.util.Comparator;

/** latest, first, min and max: the greatest assertion of an order. */
final class WinnerCell implements Cell {
  private final Comparator<Held> order;
  private Held winner;

  WinnerCell(Comparator<Held> order) {
    this.order = order;
  }

  @Override
  public void add(Held assertion) {
    winner = Held.winner(order, winner, assertion);
  }

  @Override
  public Object value() {
    return winner.value();
  }

  @Override
  public Object by() {
    return winner.id();
  }
}
