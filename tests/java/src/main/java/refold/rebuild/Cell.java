package refold.rebuild;

/** What a field holds: the fold of its assertions, by its reducer. */
interface Cell {
  void add(Held assertion);

  /** Whether the field stands in the state. */
  default boolean isPresent() {
    return true;
  }

  /** What stands in the state's `fields`. */
  Object value();

  /** What stands in the state's `by`. */
  Object by();

  /** One without assertions; nothing but add may be called then. */
  static Cell empty(Field field) {
    return switch (field.reducer()) {
      case "latest" -> new WinnerCell(Held.LATEST);
      case "first" -> new WinnerCell(Held.FIRST);
      case "min" -> new WinnerCell(Held.LEAST);
      case "max" -> new WinnerCell(Held.GREATEST);
      case "sum" -> new SumCell();
      case "count" -> new CountCell();
      case "union" -> new UnionCell();
      case "append" -> new AppendCell(field.limit());
      case "map" -> new MapCell();
      case "custom" -> throw new RefusedException("the custom reducer of the field " + field.name());
      default -> throw new RefusedException("the reducer " + field.reducer() + " of the field " + field.name());
    };
  }

  /** The one in an encoded entity. */
  static Cell unpack(Field field, Object packed, OrderKeys keys) {
    return switch (field.reducer()) {
      case "sum" -> SumCell.unpack(packed);
      case "count" -> CountCell.unpack(packed);
      case "union" -> UnionCell.unpack(packed, keys);
      case "append" -> AppendCell.unpack(packed, keys, field.limit());
      case "map" -> MapCell.unpack(packed, keys);
      default -> {
        Cell found = empty(field);
        found.add(Held.unpack(packed, keys));
        yield found;
      }
    };
  }
}
