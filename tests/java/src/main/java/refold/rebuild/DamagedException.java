package refold.rebuild;

/** Something stored is not what it says it is; an epoch of which it is a part is not used. */
final class DamagedException extends RuntimeException {
  private static final long serialVersionUID = 1;

  DamagedException(String message) {
    super(message);
  }
}
